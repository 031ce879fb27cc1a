// Remaining time counts down by the server's clock as it was when the page was made; "choose all" ticks every box of its form.
const units = [86400, 3600, 60, 1];

function words(seconds, names) {
  const first = units.findIndex((unit) => seconds >= unit);
  if (first < 0) return `0\u00a0${names[3]}`;
  const major = Math.floor(seconds / units[first]);
  const rest = first < 3 ? Math.floor((seconds % units[first]) / units[first + 1]) : 0;
  const minor = first === 2 ? String(rest).padStart(2, "0") : rest;
  return `${major}\u00a0${names[first]}${rest ? `\u00a0${minor}\u00a0${names[first + 1]}` : ""}`;
}

// The page's own age, on a clock that nobody sets.
const ages = new WeakMap();

function tick() {
  for (const time of document.querySelectorAll("time[data-left]")) {
    const known = ages.get(time);
    if (known?.now !== time.dataset.now) ages.set(time, { now: time.dataset.now, at: performance.now() });
    const age = performance.now() - ages.get(time).at;
    const seconds = Math.max(0, Math.floor((Date.parse(time.dateTime) - Date.parse(time.dataset.now) - age) / 1000));
    const text = words(seconds, time.dataset.left.split("|"));
    if (time.textContent !== text) time.textContent = text;
  }
}
tick();
setInterval(tick, 1000);

for (const all of document.querySelectorAll("[data-choose-all][hidden]")) all.hidden = false;
document.addEventListener("click", (event) => {
  const all = event.target.closest("[data-choose-all]");
  if (!all) return;
  const boxes = [...all.closest("form").querySelectorAll("input[type=checkbox][name=request]")];
  const on = boxes.some((box) => !box.checked);
  for (const box of boxes) box.checked = on;
});

// On a phone the list and the request are two pages: the current entry is brought into sight where both are shown.
document.querySelector(".inbox [aria-current=true]")?.scrollIntoView({ block: "nearest" });
