// One click, one request: a form that is on its way cannot be sent again. Pages restored by the back button are ready anew.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (form.dataset.sent) {
    event.preventDefault();
    return;
  }
  form.dataset.sent = "yes";
  event.submitter?.setAttribute("aria-busy", "true");
});

addEventListener("pageshow", () => {
  for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
});

// Toasts leave by themselves, not while somebody reads them.
for (const toast of document.querySelectorAll(".toasts[data-float] > .toast")) {
  toast.querySelector("button").addEventListener("click", () => toast.remove());
  setTimeout(function leave() {
    if (toast.matches(":hover, :focus-within")) setTimeout(leave, 2000);
    else toast.remove();
  }, 8000);
}
