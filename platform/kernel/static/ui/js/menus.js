// Menus are <details>: they open without a script. This closes them again: on Escape, on a click outside, when another opens.
const open = () => document.querySelectorAll("details.menu[open]");

document.addEventListener("click", (event) => {
  for (const menu of open()) if (!menu.contains(event.target)) menu.open = false;
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const menu of open()) {
    menu.open = false;
    if (menu.contains(document.activeElement) || document.activeElement === document.body) {
      menu.querySelector("summary").focus();
    }
  }
});

// Leaving a menu with Tab closes it, so that focus is never behind it.
document.addEventListener("focusin", (event) => {
  for (const menu of open()) if (!menu.contains(event.target)) menu.open = false;
});
