// Fewer KV heads: bytes per token, the heads on each device, and what is known of the quality.
lab.define("gqa", (here, data) => {
  const { make, fixed } = lab;
  const model = here.choice("model", "Model", Object.keys(data.models).map(name => [name, name]), data.model);
  const power = { read: x => 2 ** x, show: String };
  const heads = here.slider("heads", "KV heads K", { ...power, min: 0, max: 6, value: 3 });
  const devices = here.slider("devices", "Devices", { ...power, min: 0, max: 4, value: Math.log2(data.devices) });

  const rack = make("ul", { class: "lab-rack" });
  here.view.append(rack);
  here.list(["cache", "KV cache per token"], ["device", "of it on each device"], ["all", "on all devices together"],
    ["saved", "on each device with MHA"]);
  const body = make("tbody");
  here.view.append(make("table", { class: "lab-table lab-wordy" }, make("thead", {}, make("tr", {},
    ...["what is known of the quality", "compared with MHA"].map(text => make("th", { scope: "col" }, text)))), body));

  const change = x => (x > 0 ? `+${fixed(x, 1)}` : fixed(x, 1));
  here.draw(() => {
    const of = data.models[model.value], N = of.num_heads;
    heads.max = Math.log2(N);
    const K = heads.value, P = devices.value, G = N / K;
    const each = Math.max(1, K / P), copies = Math.max(1, P / K); // KV heads on a device, devices with the same one
    const head = 4 * of.num_layers * of.head_dim; // bytes per token of one KV head: key and value, two bytes each
    const show = bytes => `${fixed(bytes / 1024, bytes % 1024 ? 1 : 0)} KiB`;
    rack.style.setProperty("--columns", Math.min(P, 4));
    rack.replaceChildren(...Array.from({ length: P }, (_, p) => {
      const first = Math.floor(p * K / P);
      const chips = Array.from({ length: each }, (_, n) => make("span",
        { class: `lab-kv lab-${copies > 1 && p % copies ? "copied" : "own"}` }, String(first + n)));
      return make("li", { "aria-label": `device ${p}: KV heads ${first} to ${first + each - 1}` },
        make("b", {}, `device ${p}`), ...chips);
    }));
    here.number("cache", K * head, show(K * head));
    here.number("device", each * head, show(each * head));
    here.number("all", P * each * head, show(P * each * head));
    const saved = Math.max(1, N / P) / each;
    here.number("saved", saved, `${show(Math.max(1, N / P) * head)}, ${fixed(saved, 0)}×`);
    body.replaceChildren(...data.published.map(([what, scores]) => {
      const score = K === N ? 0 : scores[K] === undefined ? null : scores[K] - scores.MHA;
      return [what, score === null ? "not published" : K === N ? "the reference" : `${change(score)} points`];
    }).concat([[`our tiny models with ${G} query heads per KV head: change of the loss in nats, five seeds (lower is better)`,
      K === N ? "the reference" : data.tiny[G] ? data.tiny[G].map(x => (x > 0 ? "+" : "") + fixed(x, 3)).join(" to ") : "not trained"]])
      .map(cells => make("tr", {}, make("th", { scope: "row" }, cells[0]), make("td", {}, cells[1]))));
    const kind = K === N ? "MHA" : K === 1 ? "MQA" : `GQA with ${K} KV heads`;
    const split = copies > 1 ? `Every KV head is stored ${copies} times (the copies are dashed), so a smaller K would save nothing more on a device.`
      : K === P ? "Each device holds exactly one KV head: the smallest K that needs no copies here."
      : `Each device holds ${each} of its own.`;
    here.say(`${kind}: ${G === 1 ? "each query head has a KV head of its own" : `${G} query heads share a KV head`}. ${split}`);
  });
});
