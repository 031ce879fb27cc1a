// The theme switch. Without this module it is a form that the server answers; the choice is a cookie, so nothing flashes on load.
const root = document.documentElement;
const dark = () =>
  root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-theme-toggle]")) return;
  event.preventDefault();
  root.dataset.theme = dark() ? "light" : "dark";
  document.cookie = `smriti_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
});
