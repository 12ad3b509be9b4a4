// What fits on a server and how fast it decodes, at best: bytes and FLOPs over published rates.
lab.define("serving", (here, data) => {
  const { make, fixed } = lab;
  const power = x => 2 ** x;
  const whole = x => x.toLocaleString("en");
  const names = of => Object.keys(of).map(name => [name, name]);
  const model = here.choice("model", "Model", names(data.models), data.model);
  const chip = here.choice("chip", "Chip", names(data.chips), data.chip);
  const devices = here.slider("devices", "Devices",
    { min: 0, max: 6, value: Math.log2(data.devices), read: power, show: whole });
  const context = here.slider("context", "Tokens per request",
    { min: 10, max: 20, value: Math.log2(data.context), read: power, show: whole });
  const batch = here.slider("batch", "Batch", { min: 1, max: 256, value: data.batch, show: whole });
  const bits = here.choice("bits", "Bits per cached element", [[16, "16"], [8, "8"], [4, "4"]], data.bits);

  const track = make("div", { class: "lab-track" });
  const parts = {};
  for (const [name, kind] of [["weights", "lab-one"], ["caches", "lab-two"]]) {
    parts[name] = make("span", { class: `lab-part ${kind}` });
    track.append(parts[name]);
  }
  here.view.append(make("div", { class: "lab-row" },
    make("span", {}, "memory: weights, then caches"), here.cell("memory"), track));
  here.list(["cache", "KV cache of one request"], ["most", "requests that fit"],
    ["step", "time per token, at least"], ["rate", "tokens a second, at most"]);

  here.draw(() => {
    const of = data.models[model.value], device = data.chips[chip.value], n = devices.value;
    const split = Math.min(n, of.heads); // devices that divide a cache; beyond that heads are copied
    const cache = context.value * of.token * Number(bits.value) / 8;
    const own = { weights: 2 * of.weights / n, caches: batch.value * cache / split };
    const room = 0.9 * device.memory, used = own.weights + own.caches;
    const most = Math.max(0, Math.floor((room - own.weights) / (cache / split)));
    const flops = batch.value * (2 * of.read + context.value * of.pair_flops) / n;
    const reading = (2 * of.read / n + own.caches) / device.bytes, doing = flops / device.flops;
    const step = Math.max(reading, doing);
    for (const [name, part] of Object.entries(parts))
      part.style.width = `${100 * own[name] / Math.max(room, used)}%`;
    here.number("memory", used, `${fixed(used / 1e9, 1)} of ${fixed(room / 1e9, 1)} GB a device`);
    here.number("cache", cache, `${fixed(cache / 1e9, cache < 1e10 ? 2 : 1)} GB`);
    here.number("most", most, whole(most));
    here.number("step", step, `${fixed(1e3 * step, 1)} ms`);
    here.number("rate", batch.value / step, whole(Math.round(batch.value / step)));
    here.strike(used > room, "step", "rate");
    const copied = n > of.heads ? ` Each KV head is stored ${n / of.heads} times.` : "";
    here.say((used > room ? `This doesn't fit: ${most ? `at most ${whole(most)} requests do.` : "not one request does."}`
      : `This fits, and a step waits for ${reading >= doing ? "memory" : "arithmetic"}.`) + copied);
  });
});
