// Stored runs of SmolLM2 on short sequences: where L18H6 looks, with heads ablated or not.
lab.define("induction", (here, { sequences }) => {
  const { make, fixed } = lab;
  const chosen = here.choice("sequence", "Sequence", Object.keys(sequences).map(name => [name, name]));
  const kinds = Object.keys(Object.values(sequences)[0]).filter(name => !["tokens", "previous"].includes(name));
  const without = here.choice("without", "Ablated", kinds.map(name => [name, name]), kinds[0]);
  const at = here.slider("query", "Query", {
    min: 1, max: 10, value: 4, show: n => {
      const { tokens } = sequences[chosen.value];
      return (tokens[(tokens.length + 1) / 2 + n - 1] ?? "").trim();
    },
  });
  const next = here.button("Next token", () => { at.value = at.value + 1; });

  const lists = ["first half", "second half"].map(name => make("ol", { class: "lab-tokens", "aria-label": `${name}, and the attention it gets` }));
  here.view.append(...lists);
  here.list(["match", "L18H6 on the match"], ["whole", "the same, nothing ablated"],
    ["mean", "mean over the second half"], ["right", "probability of the next token"],
    ["back", "L16H0 at the match, on the token before"]);

  const show = token => (token.startsWith("<|") ? "start" : token.trim());
  here.draw(() => {
    const of = sequences[chosen.value], T = of.tokens.length, half = (T + 1) / 2, now = of[without.value];
    at.max = T - half;
    next.disabled = at.value >= T - half;
    const query = half + at.value - 1;
    // The places after earlier occurrences of a token.
    const matches = i => of.tokens.flatMap((token, j) => (j > 0 && j < i && token === of.tokens[i] ? [j + 1] : []));
    const on = (run, i) => matches(i).reduce((sum, j) => sum + run.weights[i - half][j], 0);
    const row = now.weights[query - half], found = matches(query);
    const cells = of.tokens.map((token, j) => make("li", {
      class: j === query ? "lab-query" : found.includes(j) ? "lab-match" : j > query ? "lab-unread" : "",
      style: `--weight: ${j > query ? 0 : row[j]}`,
    }, make("span", {}, show(token)), make("span", { class: "lab-under" }, j > query ? "" : fixed(row[j], 2))));
    lists[0].replaceChildren(...cells.slice(0, half));
    lists[1].replaceChildren(...cells.slice(half));
    const seconds = Array.from({ length: T - half }, (_, n) => half + n).filter(i => matches(i).length);
    const mean = seconds.reduce((sum, i) => sum + on(now, i), 0) / seconds.length;
    const put = (name, x) => here.number(name, x, x === undefined || Number.isNaN(x) ? "–" : fixed(x, 2));
    put("match", found.length ? on(now, query) : undefined);
    put("whole", found.length ? on(of.nothing, query) : undefined);
    put("mean", mean);
    put("right", now.right[query - half]);
    put("back", found.length ? of.previous[found[0] - 1] : undefined);
    const here_ = `“${show(of.tokens[query])}”`, best = row.indexOf(Math.max(...row));
    const place = best === 0 ? "rests on the start token" : found.includes(best) ? "looks at the match"
      : `looks at “${show(of.tokens[best])}”, which isn't the match`;
    here.say(found.length
      ? `${here_} stood earlier in the text, before ${found.map(j => `“${show(of.tokens[j])}”`).join(" and ")}. ` +
        `With ${without.value === "nothing" ? "nothing" : without.value.split(",")[0]} ablated, L18H6 mostly ${place} (weight ${fixed(row[best], 2)}).`
      : `${here_} is new, so there is nothing to match: L18H6 mostly ${place} (weight ${fixed(row[best], 2)}).`);
  });
});
