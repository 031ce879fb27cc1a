// Single-key shortcuts. They can be switched off in the profile (WCAG 2.1.4), and never fire while somebody types.
const rows = () => [...document.querySelectorAll(".table tbody a[data-row], .events > li > a, .places > li > a")];

function move(by) {
  const links = rows().filter((link) => link.checkVisibility());
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + by))].focus();
}

const keys = {
  j: () => move(1),
  k: () => move(-1),
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
