// Finding one's way; the pages can be read without it.
(() => {
  // The folds in the list of pages are called what they open.
  const nameFolds = () => {
    for (const fold of document.querySelectorAll(".bd-links li summary")) {
      const link = fold.closest("li").querySelector("a");
      fold.setAttribute("aria-label", `Pages below ${link.textContent.trim()}`);
    }
  };

  // What a link to an equation, a figure, a cited work or a term of the glossary leads to, shown
  // beside it: of this page by a copy, of other pages from a table at the end of this one; a work
  // from the link's title, which a mouse alone would show.
  const CITED = "article a.reference[href*='#equation-'], article a.term-link, " +
    "article a.reference:has(> .std-numref), article a.reference[href*='bibliography.html#'][title]";
  const typeset = tex => {
    const rows = /\\begin\{/.test(tex) ? tex : `\\begin{aligned}${tex}\\end{aligned}`;
    return window.MathJax.tex2chtmlPromise(rows, { display: true });
  };
  const inline = async text => {
    const box = document.createElement("p");
    for (const [n, piece] of text.split("$").entries()) {
      if (n % 2 === 0) box.append(piece);
      else box.append(await window.MathJax.tex2chtmlPromise(piece, { display: false }));
    }
    return box;
  };

  const NEAR = 120; // px
  const showTips = () => {
    const table = JSON.parse(document.getElementById("tips")?.textContent ?? "{}");
    const tip = document.createElement("div");
    tip.id = "tip";
    tip.setAttribute("role", "tooltip");
    tip.hidden = true;
    document.body.append(tip);
    let shown = null, timer = 0;

    const works = new Map();
    for (const link of document.querySelectorAll("article a.reference[href*='bibliography.html#'][title]"))
      works.set(link, link.title);
    const figure = async target => {
      const copy = document.createElement("div");
      const image = [...target.querySelectorAll("img")].map(one => one.cloneNode());
      for (const one of image) { one.loading = "eager"; one.alt = ""; }
      const words = target.querySelector("figcaption p").cloneNode(true);
      words.querySelector(".headerlink")?.remove();
      copy.append(...image, words);
      await Promise.all(image.map(one => one.decode().catch(() => {}))); // its size says where there is room
      return copy;
    };
    const content = async link => {
      const href = link.getAttribute("href");
      if (works.has(link)) {
        const words = document.createElement("p");
        words.textContent = works.get(link).replace(/ URL: \S+$/, "");
        return words;
      }
      if (href.startsWith("#")) {
        const target = document.getElementById(href.slice(1));
        if (target?.matches("figure")) return figure(target);
        const formula = target?.querySelector("mjx-container") ??
          target?.nextElementSibling?.querySelector?.("mjx-container");
        return formula?.cloneNode(true);
      }
      const found = table[href];
      if (!found) return null;
      await window.MathJax?.startup?.promise;
      if (found.text) return inline(found.text);
      return window.MathJax?.tex2chtmlPromise ? typeset(found.tex) : null;
    };
    const hide = () => {
      clearTimeout(timer);
      shown?.removeAttribute("aria-describedby");
      shown = null;
      tip.hidden = true;
    };
    const show = async link => {
      if (shown === link) return;
      hide();
      shown = link;
      const inside = await content(link);
      if (!inside || shown !== link) return;
      inside.removeAttribute("tabindex");
      tip.replaceChildren(inside);
      // MathJax's style sheet has the letters that it has met: let it write that again.
      window.MathJax?.startup?.document?.processed.clear("updateDocument");
      window.MathJax?.startup?.document?.updateDocument();
      link.setAttribute("aria-describedby", "tip");
      tip.hidden = false;
      const place = link.getClientRects()[0] ?? link.getBoundingClientRect();
      const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${scrollX + Math.max(8, Math.min(place.left, room))}px`;
      // Below what is being read, or above it, where that is near: it should not be covered.
      const block = link.closest("p, li, figcaption, td")?.getBoundingClientRect() ?? place;
      const [top, bottom] = [Math.max(block.top, place.top - NEAR), Math.min(block.bottom, place.bottom + NEAR)];
      const above = bottom + tip.offsetHeight + 12 > innerHeight && top > innerHeight - bottom;
      tip.style.top = `${scrollY + (above ? top - tip.offsetHeight - 6 : bottom + 6)}px`;
    };
    for (const link of document.querySelectorAll(CITED)) {
      if (works.has(link)) link.removeAttribute("title");
      link.addEventListener("mouseenter", () => { timer = setTimeout(() => show(link), 150); });
      link.addEventListener("focus", () => show(link));
      link.addEventListener("blur", hide);
      link.addEventListener("mouseleave", () => {
        clearTimeout(timer);
        timer = setTimeout(() => { if (!tip.matches(":hover")) hide(); }, 400); // time to get there
      });
    }
    tip.addEventListener("mouseleave", hide);
    document.addEventListener("keydown", event => { if (event.key === "Escape") hide(); });
  };

  // A link to what is in a closed fold opens the fold.
  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const folds = [];
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details"))
      folds.push(fold);
    const closed = folds.filter(fold => !fold.open);
    for (const fold of closed) fold.open = true;
    if (closed.length) target.scrollIntoView();
  };
  window.addEventListener("hashchange", openTarget);

  const begin = () => { nameFolds(); showTips(); openTarget(); };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
