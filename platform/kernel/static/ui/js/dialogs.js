// A link with data-dialog leads to a page with one form. Here the form comes to the reader instead, in a dialog.
// Anything unexpected (signed out, an error page) falls back to following the link.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-dialog]");
  if (!link || event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  try {
    const response = await fetch(link.href, { credentials: "same-origin" });
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const form = page.querySelector("form[data-dialog-form]");
    if (!response.ok || !form) throw new Error("no form");
    show(form, link);
  } catch {
    location.assign(link.href);
  }
});

function show(form, opener) {
  const dialog = document.createElement("dialog");
  dialog.className = "dialog";
  dialog.append(document.importNode(form, true));
  const heading = dialog.querySelector("h2");
  if (heading) {
    heading.id ||= "dialog-heading";
    dialog.setAttribute("aria-labelledby", heading.id);
  }
  dialog.addEventListener("close", () => {
    dialog.remove();
    opener.focus();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-dialog-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });
  document.body.append(dialog);
  dialog.showModal();
}
