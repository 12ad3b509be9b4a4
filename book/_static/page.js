// Small mendings of every page: wide boxes, labels, printing. The page can be read without them.
(() => {
  // A box that scrolls sideways: a faded edge where there is more, and a stop of the Tab key.
  const WIDE = ".bd-article :is(pre, div.math, mjx-container[display='true'], .wide-table, " +
    ".pst-scrollable-table-container, .figure-scroll, .cell_output, .cell_output .output)";
  const watched = new WeakSet();

  const edges = box => {
    const style = getComputedStyle(box);
    const room = box.scrollWidth - box.clientWidth;
    const scrolls = room > 2 && ["auto", "scroll"].includes(style.overflowX);
    box.classList.toggle("more-left", scrolls && box.scrollLeft > 2);
    box.classList.toggle("more-right", scrolls && box.scrollLeft < room - 2);
    if (scrolls) box.tabIndex = 0;
    else if (!scrolls && box.getAttribute("tabindex") === "0") box.removeAttribute("tabindex");
  };

  const sizes = new ResizeObserver(entries => entries.forEach(entry => edges(entry.target)));
  const watch = () => {
    for (const box of document.querySelectorAll(WIDE)) {
      if (watched.has(box)) { edges(box); continue; }
      watched.add(box);
      sizes.observe(box);
      box.addEventListener("scroll", () => edges(box), { passive: true });
    }
  };

  // What a button is called has to have in it what is read on it.
  const label = () => {
    for (const button of document.querySelectorAll(".search-button-field[aria-label]"))
      button.removeAttribute("aria-label");
    for (const button of document.querySelectorAll(".theme-switch-button"))
      for (const icon of button.querySelectorAll("i, svg, span")) icon.setAttribute("aria-hidden", "true");
    const bar = document.querySelector(".bd-sidebar-primary");
    if (bar && !bar.hasAttribute("role")) {
      bar.setAttribute("role", "navigation");
      bar.setAttribute("aria-label", "The book");
    }
  };

  // On paper: light colours, every fold open, every image there; afterwards as before.
  let before = null;
  const prepare = () => {
    if (before) return;
    const root = document.documentElement;
    const folds = [...document.querySelectorAll("details:not([open])")];
    before = { theme: root.dataset.theme, folds };
    root.dataset.theme = "light";
    for (const fold of folds) fold.open = true;
    for (const image of document.querySelectorAll("img[loading=lazy]")) image.loading = "eager";
  };
  const restore = () => {
    if (!before) return;
    document.documentElement.dataset.theme = before.theme;
    for (const fold of before.folds) fold.open = false;
    before = null;
  };
  window.addEventListener("beforeprint", prepare);
  window.addEventListener("afterprint", restore);

  document.addEventListener("DOMContentLoaded", () => { label(); watch(); });
  window.addEventListener("load", () => {
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    Promise.resolve(typeset).then(watch);
    document.fonts.addEventListener("loadingdone", watch);  // formulas change their width
  });
})();
