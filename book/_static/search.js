// How results of the search are found, ordered and shown: read by Sphinx (html_search_scorer).
var Scorer = {
  // [docname, title, anchor, description, score, file name] -> score
  score: result => {
    const [docname, title, anchor, , score] = result;
    // A page found by its own title is called "title > title": then it stands twice.
    if (!anchor) result[1] = title.split(" > ")[0];
    if (/^book\/(api|api\/.*|figures|exercises|status|evidence|notation-manual)$/.test(docname)) return score - 20;
    if (/^book\/(claims|bibliography|glossary|notation-table)$/.test(docname)) return score - 6;
    return score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// One entry for each page, its best section first, the next below it; excerpts of what was found.
if (typeof Search !== "undefined") (() => {
  const SHOWN = 10, SECTIONS = 3, LENGTH = 220;
  const IDLE = /^(?:(?:what|how|why|when|where|who|which|is|are|do|does|did|can|should|a|an|the|to|of|in|for|i|it|by|on)$)/;
  const make = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  // The terms of the field that a query has in it, in any order, in the singular or the plural.
  const terms = query => {
    const { indexentries, docnames, titles, filenames } = Search._index;
    const stemmer = new Stemmer();
    const stems = text => new Set(splitQuery(text.toLowerCase()).filter(word => !IDLE.test(word))
      .map(word => stemmer.stemWord(word)));
    const asked = stems(query), found = [];
    for (const [entry, places] of Object.entries(indexentries)) {
      const of = stems(entry);
      if (!of.size || ![...of].every(stem => asked.has(stem))) continue;
      for (const [file, id, isMain] of places) if (isMain)
        found.push([docnames[file], titles[file], id ? `#${id}` : "", null, 99 * of.size / asked.size, filenames[file]]);
    }
    return found;
  };

  // The parts of a page: [anchor, heading, text] of each section, without code, formulas, buttons.
  const parts = text => {
    const article = new DOMParser().parseFromString(text, "text/html").querySelector("article");
    if (!article) return [];
    for (const part of article.querySelectorAll("pre, div.math, summary, script, style, .headerlink, .lab, .to-code, .tag_exercise"))
      part.remove();
    for (const formula of article.querySelectorAll("span.math"))
      if (/\\[a-zA-Z]/.test(formula.textContent)) formula.textContent = "…";
      else formula.textContent = formula.textContent.replace(/\\[()]|[{}]/g, "");
    return [...article.querySelectorAll("section")].map((section, n) => {
      const own = [...section.children].filter(child => !child.matches("section"));
      const heading = own.find(child => /^H\d$/.test(child.tagName));
      const words = own.filter(child => child !== heading).map(child => [...child.children].some(e => e.matches("dt, dd, li, p")) ?
        [...child.children].map(e => e.textContent).join(" ") : child.textContent).join(" ");
      return [n ? `#${section.id}` : "", heading?.textContent.trim() ?? "", words.replace(/\s+/g, " ").trim()];
    });
  };

  const place = (text, query, words) => {
    const at = text.toLowerCase().indexOf(query);
    if (at >= 0) return [at, 4];
    const all = words.map(word => text.toLowerCase().indexOf(word)).filter(n => n >= 0);
    return [all.length ? Math.min(...all) : -1, 2 * all.length / words.length];
  };

  const excerpt = (text, query, words) => {
    const at = place(text, query, words)[0];
    let start = Math.max(0, at - 80);
    if (start) start = text.indexOf(" ", start) + 1;
    const end = start + LENGTH < text.length ? text.lastIndexOf(" ", start + LENGTH) : text.length;
    const said = text.slice(start, end);
    const node = make("p", { class: "context" }, start ? "… " : "");
    const sought = [query, ...words].filter(Boolean).map(_escapeRegExp).join("|");
    said.split(new RegExp(`(${sought})`, "i")).forEach((piece, n) => node.append(n % 2 ? make("mark", {}, piece) : piece));
    node.append(end < text.length ? " …" : "");
    return node;
  };

  const shown = (group, query, words) => {
    const [[docname, title, anchor, description]] = group;
    const root = document.documentElement.dataset.content_root, page = `${root}${docname}${DOCUMENTATION_OPTIONS.FILE_SUFFIX}`;
    const [name, section] = title.split(" > ");
    const link = make("a", { href: page.replace(/^\.\//, "") + anchor });
    link.innerHTML = name;
    const says = section => { if (section) link.append(make("span", { class: "search-section" }, ` › ${section}`)); };
    if (section) says(new DOMParser().parseFromString(section, "text/html").body.textContent);
    const item = make("li", {}, link);
    if (description) item.append(make("span", {}, ` (${description.split(",")[0]})`));
    fetch(page).then(answer => answer.text()).then(text => {
      const all = parts(text);
      const score = ([, heading, words_]) => 3 * place(heading, query, words)[1] + place(words_, query, words)[1];
      const ranked = all.filter(part => score(part) > 0).sort((a, b) => score(b) - score(a));
      const first = all.find(part => part[0] === anchor) ?? ranked[0];
      const best = anchor || place(name, query, words)[1] >= 4 ? first : ranked[0] ?? first;
      if (best && !description) {
        if (!anchor && best[0]) link.setAttribute("href", link.getAttribute("href") + best[0]);
        if (!section && best[0]) says(best[1]);
        const told = place(best[2], query, words)[0] >= 0 ? best : ranked.find(part => place(part[2], query, words)[0] >= 0);
        if (told) item.append(excerpt(told[2], query, words));
      }
      const others = ranked.filter(part => part !== best && part[0]).slice(0, SECTIONS);
      if (others.length && !description) item.append(make("p", { class: "search-others" }, "Also: ",
        ...others.flatMap(([to, heading], n) => [n ? " · " : "", make("a", { href: page.replace(/^\.\//, "") + to }, heading)])));
    }).catch(() => {});
    return item;
  };

  Search.query = query => {
    const [asked, ...parsed] = Search._parseQuery(query);
    const begins = ([docname, title, anchor]) => !anchor && !/^book\/(?:api|index)/.test(docname) &&
      title.replace(/<[^>]*>/g, "").replace(/^\d+\.\s*/, "").toLowerCase().startsWith(asked.trim().toLowerCase()) ? 99 : 0;
    const results = [...Search._performSearch(asked, ...parsed), ...terms(asked).map(found => (found[4] = Scorer.score(found), found))]
      .map(found => (found[4] += begins(found), found)).sort((a, b) => b[4] - a[4] || a[1].localeCompare(b[1]));
    const groups = new Map();
    for (const result of results) groups.set(result[0], [...groups.get(result[0]) ?? [], result]);
    const all = [...groups.values()], said = asked.trim().toLowerCase();
    const words = [...parsed[2]].filter(word => !IDLE.test(word));
    const more = make("button", { type: "button", class: "search-more" });
    const show = count => {
      Search.output.append(...all.splice(0, count).map(group => shown(group, said, words)));
      more.textContent = `Show the other ${all.length}`;
      more.hidden = !all.length;
    };
    show(SHOWN);
    more.addEventListener("click", () => show(Infinity));
    Search.output.after(more);
    Search.stopPulse();
    Search.title.textContent = "Search results";
    Search.status.textContent = (groups.size ? `${groups.size} page${groups.size > 1 ? "s" : ""} found, the best first.`
      : "No page has these words. Try fewer of them, or another name.") +
      (location.protocol === "file:" ? " There are no excerpts, since these pages were opened from a file." : "");
  };
})();
