// One row of scores: a sink, one key that may match, and others that score 0.
lab.define("sink", (here, { sink, best, others }) => {
  const { make, draw, fixed } = lab;
  const MOST = 12;
  const has = here.tick("has", "there is a sink", true);
  const range = { min: 0, max: MOST, step: 0.25, show: x => fixed(x, 2) };
  const s = here.slider("sink", "Score of the sink", { ...range, value: sink });
  const top = here.slider("best", "Score of the best key", { ...range, value: best });
  const count = here.slider("others", "Other keys, score 0",
    { min: 0, max: 14, value: Math.log2(others), read: x => 2 ** x, show: x => x.toLocaleString("en") });

  const parts = { sink: ["the sink", "lab-six"], best: ["the best key", "lab-two"], others: ["all other keys", "lab-eight"] };
  const bars = {};
  const body = Object.entries(parts).map(([name, [label, kind]]) => {
    bars[name] = make("span", { class: `lab-bar lab-inked ${kind}` });
    return make("tr", {}, make("th", { scope: "row" }, label), make("td", { class: "lab-barred" },
      make("div", { class: "lab-meter" }, make("span", { class: "lab-gauge" }, bars[name]), here.cell(name))));
  });
  const curve = draw("svg", { class: "lab-curve", role: "img", height: 200, "aria-labelledby": here.sentence.id });
  here.view.append(make("div", { class: "lab-pictures" },
    make("table", { class: "lab-table lab-beside" }, make("thead", {}, make("tr", {},
      make("th", { scope: "col" }, "weight of"), make("th", { scope: "col" }, ""))), make("tbody", {}, ...body)),
    curve));
  here.list(["m", "competition (log-sum-exp of the keys' scores)"], ["passed", "share of the keys' average value written"]);

  const weights = (a, b, n) => {
    const scores = [a, b, 0], high = Math.max(...scores);
    const powers = scores.map((x, i) => Math.exp(x - high) * (i === 2 ? n : 1));
    const sum = powers.reduce((x, y) => x + y);
    return powers.map(x => x / sum);
  };
  const all = () => {
    const at = has.value ? s.value : -Infinity, n = count.value;
    const row = weights(at, top.value, n), names = Object.keys(parts);
    names.forEach((name, i) => {
      here.number(name, row[i], fixed(row[i], 3));
      bars[name].style.width = `${100 * row[i]}%`;
    });
    const m = Math.log(Math.exp(top.value) + n);
    here.number("m", m, fixed(m, 2));
    here.number("passed", 1 - row[0], fixed(1 - row[0], 3));

    const room = Math.max(curve.clientWidth, 200), edge = 28;
    const across = x => edge + x / MOST * (room - edge - 10), up = y => 160 - 136 * y;
    const text = (x, y, words, place) => draw("text", { x, y, class: "lab-small", "text-anchor": place }, words);
    curve.setAttribute("viewBox", `0 0 ${room} 200`);
    curve.replaceChildren(
      ...[0, 1].flatMap(y => [draw("line", { x1: edge, x2: room - 10, y1: up(y), y2: up(y), class: "lab-thin" }),
        text(edge - 6, up(y) + 4, String(y), "end")]),
      draw("line", { x1: across(top.value), x2: across(top.value), y1: up(1), y2: up(0), class: "lab-thin" }),
      ...[0, 1, 2].flatMap(i => {
        const kind = parts[names[i]][1], points = [];
        for (let x = 0; x <= MOST; x += 0.25) points.push(`${across(x)},${up(weights(at, x, n)[i])}`);
        return [draw("polyline", { points: points.join(" "), class: `lab-line ${kind}` }),
          draw("circle", { cx: across(top.value), cy: up(row[i]), r: 5, class: `lab-fill ${kind}` })];
      }),
      ...[0, 3, 6, 9, 12].map(x => text(across(x), 178, String(x), "middle")),
      text(across(MOST / 2), 196, "score of the best key", "middle"), text(edge, 14, "weight", "start"));

    const rest = row[0] > 0.9 ? "The head rests: the sink takes nearly everything, and with its value of 0 nearly nothing is passed on."
      : row[1] > Math.max(row[0], row[2]) ? "The head is awake: the best key has most of the weight."
      : row[0] > row[2] ? `The sink still leads, but ${fixed(100 * (1 - row[0]), 0)}% of an average gets through.`
      : `The head hands on a blur: the ${n.toLocaleString("en")} keys that don't match have most of the weight together.`;
    here.say(`${rest} ` + (has.value ? `The sink has half of the weight where the competition equals its score; here it is ${fixed(m, 2)}, and the sink scores ${fixed(at, 2)}.`
      : "Without a sink the weight has nowhere else to go."));
  };
  new ResizeObserver(() => here.redraw && here.redraw()).observe(curve);
  here.draw(all);
});
