// Every name of the package once stood on the page of the API: lead on to the page of its module.
(() => {
  const follow = () => {
    const anchor = decodeURIComponent(location.hash.slice(1));
    if (!anchor || document.getElementById(anchor)) return;
    const plain = text => text.trim().replaceAll(".", "-");
    const name = plain(anchor).replace(/^module-/, "").replace(/^api-/, "mha_book-");
    const page = [...document.querySelectorAll("article a[href^='api/']")]
      .filter(link => `${name}-`.startsWith(`${plain(link.textContent)}-`))
      .sort((a, b) => b.textContent.length - a.textContent.length)[0];
    if (!page) return;
    location.replace(page.href.split("#")[0] + (anchor.startsWith("api-") ? "" : `#${anchor}`));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", follow);
  else follow();
  window.addEventListener("hashchange", follow);
})();
