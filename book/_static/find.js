// Finding one's way; the pages can be read without it.
(() => {
  document.addEventListener("DOMContentLoaded", () => {
    // The folds in the list of pages are called what they open.
    for (const fold of document.querySelectorAll(".bd-links summary")) {
      const link = fold.closest("li").querySelector("a");
      fold.setAttribute("aria-label", `Pages below ${link.textContent.trim()}`);
    }
  });
})();
