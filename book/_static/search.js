// How results of the search are ordered and shown: read by Sphinx (html_search_scorer).
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

// Excerpts are of prose: of the article alone, without code, formulas, and buttons.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  Search.htmlToText = (text, anchor) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const article = page.querySelector("article") ?? page.body;
    for (const part of article.querySelectorAll("pre, div.math, summary, script, style, .headerlink"))
      part.remove();
    for (const formula of article.querySelectorAll("span.math"))
      if (/\\[a-zA-Z]/.test(formula.textContent)) formula.textContent = "…";
      else formula.textContent = formula.textContent.replace(/\\[()]|[{}]/g, "");
    const part = anchor && page.getElementById(anchor.slice(1))?.closest("section");
    return (part || article).textContent.replace(/\s+/g, " ").trim();
  };
});
