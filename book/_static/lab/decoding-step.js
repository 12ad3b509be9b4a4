// The least time of one step of decoding, part by part: bytes and FLOPs over published rates.
lab.define("decoding-step", (here, data) => {
  const { make, fixed } = lab;
  const power = x => 2 ** x;
  const whole = x => x.toLocaleString("en");
  const chip = here.choice("chip", "Chip", Object.keys(data.chips).map(name => [name, name]), data.chip);
  const heads = here.choice("heads", `KV heads (of ${data.num_heads})`,
    Object.keys(data.shapes).sort((a, b) => b - a).map(k => [k, k]), data.num_kv_heads);
  const batch = here.slider("batch", "Batch size",
    { min: 0, max: 10, value: Math.log2(data.batch), read: power, show: whole });
  const length = here.slider("length", "Positions",
    { min: 7, max: 17, value: Math.log2(data.length), read: power, show: whole });
  const bits = here.choice("bits", "Cache bits", [[16, "16"], [8, "8"]], 16);

  const line = (label, name, kind) => {
    const total = here.cell(name), part = make("span", { class: `lab-part ${kind}` });
    here.view.append(make("div", { class: "lab-row" }, make("span", {}, label), total,
      make("div", { class: "lab-track" }, part)));
    return part;
  };
  const parts = {
    weights: line("matrix products: reading weights", "weights", "lab-one"),
    layers: line("matrix products: arithmetic", "layers", "lab-one"),
    caches: line("attention: reading caches", "caches", "lab-two"),
    pairs: line("attention: arithmetic", "pairs", "lab-two"),
  };
  here.list(["step", "least time of a step"], ["rate", "tokens per second, at most"],
    ["memory", "weights and caches"]);

  here.draw(() => {
    const device = data.chips[chip.value], shape = data.shapes[heads.value];
    const positions = batch.value * length.value;
    const cacheBytes = positions * shape.position * Number(bits.value) / 8;
    const times = {
      weights: 2 * shape.weights / device.bytes,
      layers: 2 * batch.value * shape.weights / device.flops,
      caches: cacheBytes / device.bytes,
      pairs: positions * data.pair_flops / device.flops,
    };
    const ms = x => `${fixed(1e3 * x, 1e3 * x < 1 ? 3 : 1)} ms`;
    const products = Math.max(times.weights, times.layers), attention = Math.max(times.caches, times.pairs);
    const step = products + attention, longest = Math.max(products, attention);
    for (const [name, part] of Object.entries(parts)) {
      part.style.width = `${100 * times[name] / longest}%`;
      here.number(name, times[name], ms(times[name]));
    }
    here.number("step", step, ms(step));
    here.number("rate", batch.value / step, whole(Math.round(batch.value / step)));
    const bytes = 2 * shape.weights + cacheBytes, fits = bytes <= device.memory;
    here.number("memory", bytes, `${fixed(bytes / 1e9, 1)} of ${fixed(device.memory / 1e9, 0)} GB`);
    here.strike(!fits, "step", "rate", ...Object.keys(parts));
    const waits = (reading, doing) => reading >= doing ? "memory" : "arithmetic";
    const [first, second] = [waits(times.weights, times.layers), waits(times.caches, times.pairs)];
    const both = first === second ? " and so does attention" : `, attention for ${second}`;
    here.say(`The matrix products wait for ${first}${both}, which takes ${Math.round(100 * attention / step)}% of the step.` +
      (fits ? "" : ` But weights and caches don't fit into one ${chip.value}, so these times are struck out.`));
  });
});
