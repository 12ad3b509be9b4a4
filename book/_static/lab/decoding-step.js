// The least time of one step of decoding: bytes and FLOPs over published rates.
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
  const bits = here.choice("bits", "Bits per element of the cache", [[16, "16"], [8, "8"]], 16);

  const line = (label, ...parts) => {
    const row = { parts: {}, total: here.cell(`total-${parts[0][0]}`) };
    const track = make("div", { class: "lab-track" });
    for (const [name, kind] of parts) {
      row.parts[name] = make("span", { class: `lab-part ${kind}` });
      track.append(row.parts[name]);
    }
    here.view.append(make("div", { class: "lab-row" }, make("span", {}, label), row.total, track));
    return row;
  };
  const reading = line("reading: weights, then caches", ["weights", "lab-one"], ["caches", "lab-two"]);
  const doing = line("arithmetic: weights, then caches", ["layers", "lab-one"], ["pairs", "lab-two"]);
  here.list(["step", "least time of a step"], ["rate", "tokens per second, at most"],
    ["caches", "time for the caches"], ["memory", "weights and caches"]);

  here.draw(() => {
    const device = data.chips[chip.value], shape = data.shapes[heads.value];
    const positions = batch.value * length.value;
    const cacheBytes = positions * shape.position * Number(bits.value) / 8;
    const times = {
      weights: 2 * shape.weights / device.bytes,
      caches: cacheBytes / device.bytes,
      layers: 2 * batch.value * shape.weights / device.flops,
      pairs: positions * data.pair_flops / device.flops,
    };
    const ms = x => `${fixed(1e3 * x, 1e3 * x < 1 ? 3 : 1)} ms`;
    const readingTime = times.weights + times.caches, doingTime = times.layers + times.pairs;
    const longest = Math.max(readingTime, doingTime);
    for (const row of [reading, doing])
      for (const [name, part] of Object.entries(row.parts)) part.style.width = `${100 * times[name] / longest}%`;
    here.number("total-weights", readingTime, ms(readingTime));
    here.number("total-layers", doingTime, ms(doingTime));
    here.number("step", longest, ms(longest));
    here.number("rate", batch.value / longest, whole(Math.round(batch.value / longest)));
    here.number("caches", times.caches, ms(times.caches));
    const bytes = 2 * shape.weights + cacheBytes, fits = bytes <= device.memory;
    here.number("memory", bytes, `${fixed(bytes / 1e9, 1)} of ${fixed(device.memory / 1e9, 0)} GB`);
    here.strike(!fits, "step", "rate", "caches", "total-weights", "total-layers");
    const share = Math.round(100 * times.caches / readingTime);
    here.say((readingTime >= doingTime
      ? `The step waits for memory; ${share}% of the bytes are caches.`
      : "The step waits for arithmetic: fewer bytes would not make it shorter.") +
      (fits ? "" : ` But weights and caches don't fit into one ${chip.value}, so these times are struck out.`));
  });
});
