// Live regions: asks for news while the page can be seen, and leaves a reader alone who selects text or has a menu open.
// The server answers 204 when nothing changed. htmx morphs the answer in, so focus, scroll and open parts stay.
const SECONDS = 3;
let failures = 0;
let due = Date.now() + SECONDS * 1000;

const busy = () =>
  document.hidden || document.querySelector("details.menu[open], dialog[open]") || !getSelection()?.isCollapsed;

setInterval(() => {
  const regions = document.querySelectorAll("[data-live]");
  if (!regions.length || Date.now() < due || busy()) return;
  due = Date.now() + SECONDS * 1000 * 2 ** Math.min(failures, 5);
  for (const region of regions) region.dispatchEvent(new CustomEvent("refresh"));
}, 500);

document.addEventListener("htmx:after:request", () => (failures = 0));
document.addEventListener("htmx:error", () => (failures += 1));
document.addEventListener("htmx:response:error", () => (failures += 1));
