// A ring of devices: whose positions are whose, and which pairs are computed in which step.
lab.define("ring", (here, { devices, each, placement, step }) => {
  const { make, draw, fixed } = lab;
  const count = here.slider("devices", "Devices", { min: 2, max: 8, value: devices });
  const order = here.choice("placement", "Order of the positions",
    ["contiguous", "striped", "zigzag"].map(name => [name, name]), placement);
  const now = here.slider("step", "Step", { min: 0, max: devices - 1, value: step });
  const next = here.button("Next step", () => { now.value = now.value + 1; });
  const causal = here.tick("causal", "causal: no key after the query", true);

  const square = draw("svg", { class: "lab-square", role: "img", "aria-labelledby": here.sentence.id });
  const body = make("tbody");
  const heads = ["device", "its positions", "keys of", "pairs now", "in all steps"];
  here.view.append(make("div", { class: "lab-pictures" },
    make("figure", { class: "lab-pairs" }, square, make("figcaption", {},
      "a row for each query, a column for each key; this step is strong, earlier ones are pale")),
    make("div", { class: "lab-scroll" }, make("table", { class: "lab-table lab-ring" },
      make("thead", {}, make("tr", {}, ...heads.map(text => make("th", { scope: "col" }, text)))), body))));
  here.list(["working", "devices that work in this step"], ["ratio", "slowest device over the mean, all steps"],
    ["used", "of the devices' time, used"]);

  // The positions of each device, in the order in which they lie there.
  const held = (name, P, T) => Array.from({ length: P }, (_, d) => Array.from({ length: T / P }, (_, n) => {
    const half = T / P / 2;
    if (name === "striped") return n * P + d;
    if (name === "contiguous") return d * 2 * half + n;
    return n < half ? d * half + n : (2 * P - 2 - d) * half + n;
  }));
  const spoken = (name, own) => {
    const half = own.length / 2, last = own.length - 1;
    if (name === "striped") return `${own[0]}, ${own[1]}, … ${own[last]}`;
    if (name === "contiguous") return `${own[0]}–${own[last]}`;
    return `${own[0]}–${own[half - 1]}, ${own[half]}–${own[last]}`;
  };
  const sum = list => list.reduce((a, b) => a + b, 0);

  here.draw(() => {
    const P = count.value, T = P * each;
    now.max = P - 1;
    next.disabled = now.value >= P - 1;
    const positions = held(order.value, P, T);
    const owner = [];
    positions.forEach((own, d) => own.forEach(at => { owner[at] = d; }));
    const isSeen = (query, key) => !causal.value || key <= query;

    // In step s a device has the keys of the one s before it.
    const pairs = Array.from({ length: P }, () => Array(P).fill(0));
    const cells = Array.from({ length: P }, () => ({ now: "", before: "", later: "" }));
    for (let query = 0; query < T; query++) for (let key = 0; key < T; key++) {
      if (!isSeen(query, key)) continue;
      const d = owner[query], s = (d - owner[key] + P) % P;
      pairs[s][d] += 1;
      cells[d][s === now.value ? "now" : s < now.value ? "before" : "later"] += `M${key} ${query}h1v1h-1z`;
    }
    const edge = T / 16; // strips at the edges: whose query, whose key
    square.setAttribute("viewBox", `${-edge * 1.5} ${-edge * 1.5} ${T + edge * 1.5} ${T + edge * 1.5}`);
    square.replaceChildren(...cells.flatMap((of, d) => [
      ...Object.entries(of).map(([when, path]) => draw("path", { d: path, class: `lab-device-${d} lab-${when}` })),
      ...positions[d].flatMap(at => [
        draw("rect", { x: -1.5 * edge, y: at, width: edge, height: 1, class: `lab-device-${d} lab-now` }),
        draw("rect", { x: at, y: -1.5 * edge, width: 1, height: edge, class: `lab-device-${d} lab-now` })]),
    ]));

    const all = positions.map((_, d) => sum(pairs.map(row => row[d])));
    const total = sum(all), most = Math.max(...all);
    const waited = sum(pairs.map(row => Math.max(...row))); // in every step all wait for the slowest
    const meter = (name, exact, share, kind) => make("td", { class: "lab-barred" }, make("div", { class: "lab-meter" },
      make("span", { "data-number": name, "data-exact": exact }, String(exact)),
      make("span", { class: "lab-gauge" }, make("span", { class: `lab-bar ${kind}`, style: `width: ${100 * share}%` }))));
    const full = Math.max(...pairs.flat());
    body.replaceChildren(...positions.map((own, d) => {
      const source = (d - now.value + P) % P, mine = pairs[now.value][d];
      return make("tr", {}, make("th", { scope: "row" }, make("span", { class: `lab-swatch lab-device-${d}` }), String(d)),
        make("td", {}, spoken(order.value, own)),
        make("td", {}, make("span", { class: `lab-swatch lab-device-${source}` }),
          make("span", { "data-number": `keys-${d}`, "data-exact": source }, String(source))),
        meter(`pairs-${d}`, mine, mine / full, `lab-device-${d}`),
        meter(`all-${d}`, all[d], all[d] / most, `lab-device-${d}`));
    }));

    const working = pairs[now.value].filter(x => x > 0).length, ratio = waited * P / total;
    const idle = pairs[now.value].flatMap((x, d) => (x > 0 ? [] : [d]));
    here.number("working", working, `${working} of ${P}`);
    here.number("ratio", ratio, fixed(ratio, 3));
    here.number("used", 1 / ratio, `${fixed(100 / ratio, 0)}%`);
    const isEven = new Set(pairs[now.value]).size === 1;
    const slowest = all.indexOf(most);
    here.say(`Step ${now.value} (of 0 to ${P - 1}): device 0 has the keys of device ${(P - now.value) % P}. ` +
      (idle.length === 1 ? `Device ${idle[0]} waits: these keys come after all of its queries. `
        : idle.length ? `Devices ${idle.slice(0, -1).join(", ")} and ${idle.at(-1)} wait: these keys come after all of their queries. `
        : isEven ? "All compute equally many pairs. " : "All compute, some a few pairs more. ") +
      (ratio === 1 ? "Over all steps nobody waits."
        : `Over all steps device ${slowest} has ${fixed(ratio, 2)} times the mean, and the others wait for it.`));
  });
});
