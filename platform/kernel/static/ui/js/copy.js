// Copy buttons, shown only where copying can work. The button says that it did, to eyes and to screen readers.
const said = document.getElementById("said");

function reveal(root) {
  for (const button of root.querySelectorAll("[data-copy][hidden]")) button.hidden = false;
}

if (navigator.clipboard) {
  reveal(document);
  document.addEventListener("htmx:after:swap", () => reveal(document));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {
      return; // the browser refused; the value stays selectable
    }
    const use = button.querySelector("use");
    const icon = use?.getAttribute("href");
    const label = button.querySelector("[data-copied]");
    const words = label?.textContent;
    use?.setAttribute("href", icon.replace(/#.*/, "#check"));
    button.classList.add("copied");
    if (label) label.textContent = label.dataset.copied;
    if (said) said.textContent = said.dataset.copied;
    setTimeout(() => {
      use?.setAttribute("href", icon);
      button.classList.remove("copied");
      if (label) label.textContent = words;
      if (said) said.textContent = "";
    }, 1600);
  });
}
