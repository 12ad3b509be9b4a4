// Questions to check oneself. Answers are kept on the reader's machine alone; without this script
// the answers are in a fold under each question.
(() => {
  const KEY = "mha-book-questions";
  let kept = {};
  try { kept = JSON.parse(localStorage.getItem(KEY)) || {}; } catch { /* private window, or no JSON */ }
  const keep = () => { try { localStorage.setItem(KEY, JSON.stringify(kept)); } catch { /* as above */ } };

  // What a choice is worth and why, copied from the fold (with its typeset formulas).
  const show = form => {
    const choice = kept[form.id];
    const voice = form.querySelector("[role=status]");
    const answer = form.querySelector(`li[data-choice="${choice}"] > span:last-child`);
    form.querySelector("details").hidden = !answer;
    form.classList.toggle("is-right", choice === "0");
    form.classList.toggle("is-wrong", !!answer && choice !== "0");
    voice.replaceChildren();
    if (!answer) return;
    form.querySelector(`input[value="${choice}"]`).checked = true;
    const verdict = document.createElement("strong");
    verdict.textContent = choice === "0" ? "Right. " : "Not quite. ";
    voice.append(verdict, ...[...answer.cloneNode(true).childNodes]);
  };
  const score = box => {
    const forms = [...box.querySelectorAll("form.question")];
    const done = forms.filter(form => form.id in kept);
    const right = done.filter(form => kept[form.id] === "0").length;
    const text = done.length ? `${right} right of ${done.length} answered` : "";
    for (const place of box.querySelectorAll(".score")) place.textContent = text;
    box.querySelector(".forget").hidden = !done.length;
  };

  for (const box of document.querySelectorAll(".questions")) {
    const forms = [...box.querySelectorAll("form.question")];
    for (const form of forms) {
      form.querySelector("button").hidden = false;
      form.addEventListener("submit", event => {
        event.preventDefault();
        const chosen = form.querySelector("input:checked");
        if (!chosen) { form.querySelector("[role=status]").textContent = "Choose an answer first."; return; }
        kept[form.id] = chosen.value;
        keep(); show(form); score(box);
      });
    }
    box.querySelector(".forget").addEventListener("click", () => {
      for (const form of forms) { delete kept[form.id]; form.reset(); show(form); }
      keep(); score(box); forms[0].querySelector("input").focus();
    });
    score(box);
    // Formulas are typeset before an answer is copied.
    const mended = () => forms.forEach(show);
    mended();
    window.addEventListener("load", () => Promise.resolve(window.MathJax?.startup?.promise).then(mended));
  }
})();
