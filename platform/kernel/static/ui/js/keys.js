// Single-key shortcuts. They can be switched off in the profile (WCAG 2.1.4), and never fire while somebody types.
const rows = () => [...document.querySelectorAll(".table tbody a[data-row], .events > li > a, .places > li > a")];

function move(by) {
  const links = rows().filter((link) => link.checkVisibility());
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

// In an inbox the next and the previous request open at once.
function turn(by) {
  const links = [...document.querySelectorAll(".inbox > li > a")];
  if (!links.length) return move(by);
  const at = links.findIndex((link) => link.ariaCurrent === "true");
  const next = at < 0 ? links[by > 0 ? 0 : links.length - 1] : links[at + by];
  if (next) next.click();
}

// What a page offers under a letter: a link is followed; a button or a field gets the focus, so that nothing is decided by one key.
function offered(letter) {
  const found = document.querySelector(`[data-key="${letter}"]:not(:disabled)`);
  if (!found) return;
  if (found.matches("a")) found.click();
  else found.focus();
}

const keys = {
  j: () => turn(1),
  k: () => turn(-1),
  a: () => offered("a"),
  e: () => offered("e"),
  r: () => offered("r"),
  c: () => offered("c"),
  "/": () => document.querySelector("[data-search]")?.focus(),
  "?": () => document.getElementById("keys-help")?.showModal(),
  n: () => document.querySelector("a[rel='next']")?.click(),
};

if (document.documentElement.dataset.keys !== "off") {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-keys-help]")) document.getElementById("keys-help")?.showModal();
  if (event.target.closest("#keys-help [data-dialog-close]")) document.getElementById("keys-help").close();
});
