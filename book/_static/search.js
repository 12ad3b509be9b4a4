// How results of the search are ordered and shown: read by Sphinx (html_search_scorer).
var Scorer = {
  // [docname, title, anchor, description, score, file name] -> score
  score: ([docname, title, anchor, description, score]) => {
    if (/^book\/(api|api\/.*|figures|exercises|status|evidence|notation-manual|snippets-mended)$/.test(docname)) return score - 20;
    if (/^book\/(claims|bibliography|notation-table)$/.test(docname)) return score - 6;
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

// Excerpts are of prose: without code, formulas, and buttons.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  const textOf = Search.htmlToText;
  Search.htmlToText = (text, anchor) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    for (const part of page.querySelectorAll("pre, div.math, summary, #jb-print-docs-body, .header-article"))
      part.remove();
    for (const formula of page.querySelectorAll("span.math"))
      if (/\\[a-zA-Z]/.test(formula.textContent)) formula.textContent = "…";
      else formula.textContent = formula.textContent.replace(/\\[()]|[{}]/g, "");
    return textOf(page.documentElement.outerHTML, anchor);
  };
});
