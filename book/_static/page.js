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

  // A line of code that may not fit goes on four columns right of where it began; its text stays as it
  // was, to be copied. What is printed in columns scrolls instead.
  const hang = () => {
    for (const pre of document.querySelectorAll(".bd-article .cell_output pre"))
      pre.classList.toggle("columns", (pre.textContent.match(/\S {2,}\S.*$/gm) ?? []).length > 1);
    for (const pre of document.querySelectorAll(".bd-article .highlight pre:not(.columns)")) {
      const lines = [[]];
      for (const node of [...pre.childNodes]) {
        if (node.nodeType !== Node.TEXT_NODE) { lines.at(-1).push(node); continue; }
        node.data.split("\n").forEach((text, n) => {
          if (n) lines.push([]);
          if (text) lines.at(-1).push(document.createTextNode(text));
        });
      }
      const parts = lines.flatMap((line, n) => {
        const text = line.map(node => node.textContent).join(""), rest = n < lines.length - 1 ? ["\n"] : [];
        if (text.length < 40) return [...line, ...rest];
        const span = Object.assign(document.createElement("span"), { className: "line" });
        span.style.setProperty("--hang", `${text.search(/\S|$/) + 4}ch`);
        span.append(...line);
        return [span, ...rest];
      });
      pre.replaceChildren(...parts);
    }
  };

  // A number stays with its unit; the name of an option is set as code, in one piece.
  const UNIT = /(?<=\d) (?=(?:[kKMGT]i?B|[mµn]?s|nats?|GHz|[kMGTP]?FLOPs?)(?![\p{L}\d]))|(?<=Llama \d) (?=\d)/gu;
  const join = () => {
    const texts = document.createTreeWalker(document.querySelector(".bd-article") ?? document.body, NodeFilter.SHOW_TEXT, node =>
      (node.parentElement.closest("pre, code, script, select, textarea, .math, .lab, .hx") ? NodeFilter.FILTER_REJECT
        : NodeFilter.FILTER_ACCEPT));
    const options = [];
    while (texts.nextNode()) {
      const { currentNode: node } = texts, text = node.data.replace(UNIT, "\u00a0");
      if (text !== node.data) node.data = text;
      if (/--[a-z]/.test(text) && node.parentElement.closest("td")) options.push(node);
    }
    for (const node of options) {
      const pieces = node.data.split(/(--[a-z][\w-]+)/).map((piece, n) => (n % 2
        ? Object.assign(document.createElement("code"), { className: "literal flag", textContent: piece }) : piece));
      node.replaceWith(...pieces);
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
    for (const table of PHONE.matches ? [] : document.querySelectorAll(".bd-article table.table:not(.lab *, .hx *)")) {
      const isWide = () => table.scrollWidth > table.parentElement.clientWidth + 2;
      table.classList.remove("small", "loose", "broad");
      if (isWide() || table.offsetHeight > 900) table.classList.add("small");
      if (isWide()) table.classList.add("loose");
      const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
      table.classList.toggle("broad", table.offsetWidth > 40 * rem + 1);  // the text's width, or the wider one
    }
    if (!PHONE.matches) return;
    for (const table of document.querySelectorAll(".bd-article table.table:not(.snug, .lab *, .hx *)")) {
      const head = [...table.tHead?.rows[0]?.cells ?? []], rows = [...table.tBodies[0]?.rows ?? []];
      const isWide = () => table.scrollWidth > table.parentElement.clientWidth + 2;
      const isCramped = () => rows.some(row => [...row.cells].some(cell => cell.clientWidth < 98 && cell.textContent.length > 24));
      const { top } = table.getBoundingClientRect();
      if (!(isWide() || isCramped()) || (top > 0 && top < innerHeight)) continue;  // nothing moves under a reader's eyes
      table.classList.add("snug");
      table.classList.toggle("named", rows.some(row => row.cells[0]?.textContent.trim().length > 9));
      const words = isCramped();
      if (!isWide() && !words) continue;
      const cells = rows.flatMap(row => [...row.cells].slice(1));
      const isPlain = table.tHead?.rows.length === 1 && rows.every(row => row.cells.length === head.length);
      const isWords = cells.filter(cell => cell.textContent.length > 14 || cell.querySelector(".math"));
      table.classList.add(isPlain && (words || isWords.length > cells.length / 4) ? "stacked" : "pinned");
      if (!table.matches(".stacked")) continue;
      table.setAttribute("role", "table");
      for (const row of rows) {
        row.setAttribute("role", "row");
        [...row.cells].forEach((cell, n) => {
          cell.setAttribute("role", n ? "cell" : "rowheader");
          const label = head[n].textContent.trim();
          if (!n || !label) return;
          cell.dataset.label = label;
          const said = document.createElement("span");  // one item of the grid beside its label
          said.append(...cell.childNodes);
          cell.append(said);
        });
      }
    }
    for (const math of document.querySelectorAll(".bd-article span.math:not([style])"))
      if (math.clientWidth > 200 && math.scrollWidth > math.clientWidth + 4)  // a letter leans over its box
        math.style.fontSize = `${Math.max(LEAST, math.clientWidth / (math.scrollWidth + 2))}em`;
  };

  // The contents list marks the section that is read: the last one that began above a line, which goes
  // down with the last screen of the page, so that each section has its turn; after a jump, its goal.
  const follow = () => {
    const places = [...document.querySelectorAll(".page-toc .nav-link[href^='#']")]
      .map(link => ({ link, section: document.getElementById(decodeURIComponent(link.hash.slice(1))) }))
      .filter(({ section }) => section?.checkVisibility());
    if (!places.length) return;
    let goal = null, marked = null, frame = 0;
    const mark = () => {
      frame = 0;
      const root = document.documentElement, rest = Math.max(0, root.scrollHeight - innerHeight - scrollY);
      const line = innerHeight * (rest < innerHeight ? 1 - 0.7 * rest / innerHeight : 0.3);
      const isAbove = ({ section }) => section.getBoundingClientRect().top <= line;
      const now = places.find(({ section }) => section === goal) ?? places.filter(isAbove).at(-1);
      if (now === marked) return;
      marked = now;
      for (const { link } of places) {
        link.classList.toggle("active", !!now && link.parentElement.contains(now.link));  // and what it is part of
        if (link === now?.link) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
      const box = now?.link.closest(".bd-sidebar-secondary"), at = now?.link.getBoundingClientRect();
      if (box && (at.top < 60 || at.bottom > box.clientHeight)) box.scrollTop += at.top - box.clientHeight / 2;
    };
    const soon = () => { frame ||= requestAnimationFrame(mark); };
    const jump = () => {
      const id = decodeURIComponent(location.hash.slice(1));
      goal = id ? document.getElementById(id)?.closest("section") : null;
      soon();
    };
    for (const kind of ["wheel", "touchmove", "keydown", "pointerdown"])
      addEventListener(kind, () => { goal = null; }, { passive: true });
    addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    addEventListener("hashchange", jump);
    document.addEventListener("click", event => { if (event.target.closest("a[href^='#']")) setTimeout(jump); });
    jump();
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

  // What can wait (layout.html) is fetched after the first formulas, in its order: search, copying, menus, and tips by Bootstrap (its
  // classes, which mha_book_html.py keeps: fade show tooltip tooltip-arrow tooltip-inner bs-tooltip-auto).
  const later = () => {
    for (const place of document.querySelectorAll("script[type=later]")) {
      const script = document.createElement("script");
      script.async = false;
      script.src = place.src;
      place.replaceWith(script);
    }
  };

  PHONE.addEventListener("change", fit);
  document.addEventListener("typeset", fit);  // what is on the first screen, see layout.html
  document.addEventListener("DOMContentLoaded", () => { label(); join(); hang(); fit(); watch(); follow(); if (!window.MathJax) later(); });
  document.addEventListener("typeset", later);
  window.addEventListener("load", () => {
    later();
    const typeset = window.MathJax && MathJax.startup && MathJax.startup.promise;
    Promise.resolve(typeset).then(() => { fit(); watch(); });
    document.fonts.addEventListener("loadingdone", watch);  // formulas change their width
  });
})();
