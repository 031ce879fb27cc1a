// Tells the server which zone this browser's clock is in, for the next page. Every time on a page names its zone, so none is
// rewritten under the reader's eyes.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (zone && !document.cookie.includes(`smriti_browser_zone=${zone};`)) {
  document.cookie = `smriti_browser_zone=${zone}; path=/; max-age=31536000; samesite=lax`;
}
