// Values as points: one head returns one point of their hull, two heads return two.
lab.define("one-head-two", (here, { tokens, keys, values, wanted }) => {
  const { make, draw, fixed } = lab;
  const REACH = 4; // of a query
  const count = here.choice("heads", "Heads", [[1, "one head"], [2, "two heads"]], 1);
  const axis = { min: -REACH, max: REACH, step: 0.125, show: x => fixed(x, 2) };
  const queries = [[0, [0.5, 1]], [1, [2, 0]]].map(([head, start]) => ["x", "y"].map((name, i) =>
    here.slider(`${name}${head}`, `Query ${head}, ${name}`, { ...axis, value: start[i] })));

  const names = { class: "lab-plane", role: "group" };
  const asks = draw("svg", { ...names, viewBox: "-4.5 -4.5 9 9", "aria-label": "keys and queries; the sliders move them, too" });
  const gives = draw("svg", { ...names, viewBox: "-1.1 -1.1 6.2 6.2", role: "img", "aria-labelledby": here.sentence.id });
  const figure = (picture, words) => make("figure", { class: "lab-pairs" }, picture, make("figcaption", {}, words));
  here.view.append(make("div", { class: "lab-pictures" },
    figure(asks, "What is asked: drag a query among the keys"),
    figure(gives, "What comes back among the values; both ringed ones are needed")));
  const body = make("tbody"), headings = ["weight of", "head 0", "head 1"].map(text => make("th", { scope: "col" }, text));
  here.view.append(make("table", { class: "lab-table" }, make("thead", {}, make("tr", {}, ...headings)), body),
    make("p", {}, "The nearest output is ", here.cell(`off-${wanted[0]}`), ` from the value of ${tokens[wanted[0]]} and `,
      here.cell(`off-${wanted[1]}`), ` from that of ${tokens[wanted[1]]}.`));

  // The hull: all values are its corners here, drawn in order of angle.
  const middle = [0, 1].map(c => values.reduce((sum, v) => sum + v[c], 0) / values.length);
  const around = [...values].sort((a, b) => Math.atan2(a[1] - middle[1], a[0] - middle[0]) - Math.atan2(b[1] - middle[1], b[0] - middle[0]));
  const word = (x, y, text, kind, place = "middle", size = null) =>
    draw("text", { x, y, class: `lab-fill ${kind}`, ...(size && { "font-size": size }), "text-anchor": place }, text);
  const dot = (head, cx, cy, r, kind) => [draw("circle", { cx, cy, r, class: `lab-fill ${kind} lab-of-${head}` }),
    word(cx, cy + 0.47 * r, String(head), head ? kind : "lab-paper", "middle", 1.35 * r)];
  const softmax = scores => {
    const powers = scores.map(x => Math.exp(x - Math.max(...scores)));
    return powers.map(x => x / powers.reduce((a, b) => a + b));
  };
  const handles = [0, 1].map(head => {
    const grip = draw("circle", { r: 0.8, class: "lab-grip", "aria-hidden": "true" });
    const move = event => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(asks.getScreenCTM().inverse());
      [at.x, -at.y].forEach((to, i) => {
        queries[head][i].input.value = Math.max(-REACH, Math.min(REACH, to));
        queries[head][i].input.dispatchEvent(new Event("input", { bubbles: true }));
      });
    };
    grip.addEventListener("pointerdown", event => { event.preventDefault(); grip.setPointerCapture(event.pointerId); });
    grip.addEventListener("touchstart", event => event.preventDefault(), { passive: false });  // or the page scrolls along
    grip.addEventListener("pointermove", event => { if (grip.hasPointerCapture(event.pointerId)) move(event); });
    return grip;
  });
  const still = draw("g"), moving = draw("g");
  still.append(draw("path", { d: `M${-REACH} 0H${REACH}M0 ${-REACH}V${REACH}`, class: "lab-thin" }),
    ...[-REACH, REACH].map(x => draw("text", { x: 0.95 * x, y: 0.6, class: "lab-mute", "text-anchor": "middle" }, fixed(x, 0))),
    ...keys.flatMap(([x, y], k) => [
    draw("line", { x1: 0, y1: 0, x2: x, y2: -y, class: "lab-line lab-two" }),
    draw("circle", { cx: x, cy: -y, r: 0.22, class: "lab-fill lab-two" }),
    word(x || 0.4, y ? 0.2 - y : -0.42, tokens[k], "lab-two", x ? "middle" : "start")]));
  asks.append(still, moving, ...handles);

  here.draw(() => {
    const active = Number(count.value);
    for (const one of [...queries[1].map(({ input }) => input.parentElement), headings[2]]) one.hidden = active < 2;
    const rows = queries.map(([x, y]) => softmax(keys.map(k => (x.value * k[0] + y.value * k[1]) / Math.SQRT2)));
    const outputs = rows.map(row => [0, 1].map(c => row.reduce((sum, w, k) => sum + w * values[k][c], 0)));
    const used = [...Array(active).keys()];
    moving.replaceChildren(...used.flatMap(head => {
      const [x, y] = queries[head].map(one => one.value);
      return [draw("line", { x1: 0, y1: 0, x2: x, y2: -y, class: `lab-line lab-one lab-of-${head}` }),
        ...dot(head, x, -y, 0.42, "lab-one")];
    }));
    handles.forEach((grip, head) => {
      grip.setAttribute("cx", queries[head][0].value);
      grip.setAttribute("cy", -queries[head][1].value);
      grip.style.display = head < active ? "" : "none";
    });
    const size = k => 0.08 + 0.3 * Math.sqrt(Math.max(...used.map(head => rows[head][k])));
    gives.replaceChildren(
      draw("polygon", { points: around.map(v => `${v[0]},${4 - v[1]}`).join(" "), class: "lab-hull" }),
      ...values.flatMap((v, k) => [
        ...(wanted.includes(k) ? [draw("circle", { cx: v[0], cy: 4 - v[1], r: 0.5, class: "lab-thin lab-wanted" })] : []),
        draw("circle", { cx: v[0], cy: 4 - v[1], r: size(k), class: "lab-fill lab-three" }),
        word(v[0], 4 - v[1] + (v[1] > middle[1] ? -0.62 : 0.95), tokens[k], "lab-three")]),
      ...used.flatMap(head => dot(head, outputs[head][0], 4 - outputs[head][1], 0.29, "lab-four")));
    body.replaceChildren(...tokens.map((token, k) => make("tr", { class: wanted.includes(k) ? "lab-chosen" : "" },
      make("th", { scope: "row" }, token), ...used.map(head => make("td",
        { "data-number": `w${head}-${k}`, "data-exact": rows[head][k] }, fixed(rows[head][k], 3))))));
    const far = (o, v) => Math.hypot(o[0] - v[0], o[1] - v[1]);
    const off = wanted.map(k => Math.min(...used.map(head => far(outputs[head], values[k]))));
    wanted.forEach((k, i) => here.number(`off-${k}`, off[i], fixed(off[i], 2)));
    const [a, b] = wanted.map(k => tokens[k]), others = tokens.filter((_, k) => !wanted.includes(k));
    const inMiddle = far(outputs[0], middle) < 0.3;
    here.say(off.every(x => x < 0.5) ? `Both are there: one head returns the value of ${a}, the other that of ${b}.`
      : active > 1 ? "Two heads return two points. Move each query to the key of one of the words that are needed."
      : off.some(x => x < 0.5) ? `The head returns the value of ${off[0] < 0.5 ? a : b}, and nothing of ${off[0] < 0.5 ? b : a}.`
      : inMiddle ? `The output is halfway between ${a} and ${b}. It is also halfway between ${others.join(" and ")}, and the average of all four, so nothing later can tell which words were read.`
      : `The output is one point of the hull, ${fixed(off[0], 1)} from ${a} and ${fixed(off[1], 1)} from ${b}; together never less than ${fixed(far(values[wanted[0]], values[wanted[1]]), 1)}.`);
  });
});
