// Small mendings of every page: wide boxes, formulas and tables on a phone, labels, printing. The page can be read without them.
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

  // On a phone a formula that is too wide is set smaller, with its number below; what is wider still
  // scrolls. So is a table; where that is too little one of numbers scrolls below its first column, and
  // one of words shows each row as a card.
  const LEAST = 0.63;
  const PHONE = matchMedia("screen and (max-width: 576px)");
  const fit = () => {
    for (const math of document.querySelectorAll(".bd-article div.math:has(> mjx-container)")) {
      const box = math.querySelector("mjx-container");
      math.classList.remove("tight");
      math.style.fontSize = "";
      if (!PHONE.matches || box.scrollWidth <= box.clientWidth + 2) continue;
      math.classList.add("tight");
      math.style.fontSize = `${Math.max(LEAST, Math.min(1, box.clientWidth / (box.scrollWidth + 4)))}em`;
    }
    if (!PHONE.matches) return;
    for (const table of document.querySelectorAll(".bd-article table.table:not(.snug, .lab *, .hx *)")) {
      const isWide = () => table.scrollWidth > table.parentElement.clientWidth + 2;
      const { top } = table.getBoundingClientRect();
      if (!isWide() || (top > 0 && top < innerHeight)) continue;  // nothing moves under a reader's eyes
      table.classList.add("snug");
      if (!isWide()) continue;
      const head = [...table.tHead?.rows[0]?.cells ?? []], rows = [...table.tBodies[0]?.rows ?? []];
      const cells = rows.flatMap(row => [...row.cells].slice(1));
      const isPlain = table.tHead?.rows.length === 1 && rows.every(row => row.cells.length === head.length);
      const isWords = cells.filter(cell => cell.textContent.length > 14 || cell.querySelector(".math"));
      table.classList.add(isPlain && isWords.length > cells.length / 4 ? "stacked" : "pinned");
      if (!table.matches(".stacked")) continue;
      table.setAttribute("role", "table");
      for (const row of rows) {
        row.setAttribute("role", "row");
        [...row.cells].forEach((cell, n) => {
          cell.setAttribute("role", n ? "cell" : "rowheader");
          const label = head[n].textContent.trim();
          if (n && label) cell.dataset.label = label;
        });
      }
    }
    for (const math of document.querySelectorAll(".bd-article span.math:not([style])"))
      if (math.clientWidth > 200 && math.scrollWidth > math.clientWidth + 4)  // a letter leans over its box
        math.style.fontSize = `${Math.max(LEAST, math.clientWidth / (math.scrollWidth + 2))}em`;
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

  PHONE.addEventListener("change", fit);
  document.addEventListener("typeset", fit);  // what is on the first screen, see layout.html
  document.addEventListener("DOMContentLoaded", () => { label(); fit(); watch(); });
  window.addEventListener("load", () => {
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    Promise.resolve(typeset).then(() => { fit(); watch(); });
    document.fonts.addEventListener("loadingdone", watch);  // formulas change their width
  });
})();
