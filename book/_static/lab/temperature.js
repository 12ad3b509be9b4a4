// One row of scores, multiplied: its weights, and what can be learned from them.
lab.define("temperature", (here, { scores, right }) => {
  const { make, fixed } = lab;
  const size = here.slider("size", "Size of scores", {
    min: -2, max: 4, step: 0.05, value: 0, read: x => 2 ** x, show: x => fixed(x, 2),
  });
  const answer = here.choice("answer", "The answer",
    scores.map((_, key) => [key, `key ${key}`]), right);

  const bar = () => make("span", { class: "lab-bar" });
  const meter = (number, gauge, kind = "") => make("td", { class: "lab-barred" },
    make("div", { class: "lab-meter" }, make("span", { class: `lab-gauge ${kind}` }, gauge), number));
  const rows = scores.map((_, key) => {
    const parts = { score: here.cell(`score-${key}`), weight: here.cell(`weight-${key}`),
      slope: here.cell(`slope-${key}`), weightBar: bar(), slopeBar: bar() };
    parts.row = make("tr", {}, make("th", { scope: "row" }, String(key)),
      make("td", {}, parts.score),
      meter(parts.weight, parts.weightBar), meter(parts.slope, parts.slopeBar, "lab-signed"));
    return parts;
  });
  here.view.append(make("table", { class: "lab-table" },
    make("thead", {}, make("tr", {}, ...["key", "score", "weight", "effect on answer"].map(text =>
      make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map(parts => parts.row))));
  here.list(["entropy", "entropy of the weights, as a share of the largest possible"]);

  here.draw(() => {
    const chosen = Number(answer.value);
    const top = Math.max(...scores);
    const powers = scores.map(score => Math.exp(size.value * (score - top)));
    const sum = powers.reduce((a, b) => a + b);
    const weights = powers.map(power => power / sum);
    const entropy = -weights.reduce((all, w) => all + (w ? w * Math.log(w) : 0), 0) / Math.log(weights.length);
    rows.forEach((parts, key) => {
      const slope = weights[chosen] * ((key === chosen) - weights[key]);
      here.number(`score-${key}`, size.value * scores[key], fixed(size.value * scores[key], 2));
      here.number(`weight-${key}`, weights[key], fixed(weights[key], 3));
      here.number(`slope-${key}`, slope, fixed(slope, 3));
      parts.weightBar.style.width = `${100 * weights[key]}%`;
      parts.slopeBar.style.width = `${200 * Math.abs(slope)}%`;
      parts.slopeBar.style.left = slope < 0 ? `${50 - 200 * Math.abs(slope)}%` : "50%";
      parts.slopeBar.classList.toggle("lab-minus", slope < 0);
      parts.row.classList.toggle("lab-chosen", key === chosen);
    });
    const own = weights[chosen] * (1 - weights[chosen]);
    here.number("entropy", entropy, fixed(entropy, 3));
    const width = Math.round(size.value ** 2);
    const kind = width < 2 ? "" : `, as undivided scores of width ${width} have,`;
    const share = weights[chosen] < 0.0005 ? "less than 0.001" : fixed(weights[chosen], 3);
    here.say(`At size ${fixed(size.value, 2)}${kind} the answer, key ${chosen}, has the weight ${share}. ` +
      (own < 0.01 ? "Almost nothing can be learned: no score moves it."
        : `Raising its score by 0.1 raises the weight by about ${fixed(own / 10, 4)}.`));
  });
});
