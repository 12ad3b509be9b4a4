// What token SmolLM2 expects next, with heads ablated or not. The model comes when it is asked for.
lab.define("next-token", (here, { examples, bytes, part, version }) => {
  const { make } = lab;
  const LAYERS = 30, HEADS = 9, QUIET = 500; // ms without a change, after which the model runs again
  const parts = Math.ceil(bytes / part), size = `${Math.round(bytes / 1e6)} MB`;
  const field = (name, label, value) => {
    const input = make("input", { type: "text", value, maxlength: 1000, spellcheck: "false" });
    here.field(name, label, input);
    input.addEventListener("input", () => here.changed());
    return input;
  };
  const [first] = Object.values(examples);
  const text = field("text", "Text", first[0]), heads = field("heads", "Heads to ablate", first[1]);
  const known = here.choice("example", "Examples", [["", "choose …"], ...Object.keys(examples).map(name => [name, name])], "");
  known.input.addEventListener("input", () => {
    if (known.value) [text.value, heads.value] = examples[known.value];
    known.input.value = "";
  });
  const go = here.button(`Run SmolLM2 (loads ${size})`, () => run());
  const loading = make("progress", { max: parts, value: 0, hidden: true, "aria-label": "Loading SmolLM2" });
  const table = make("div", { class: "lab-scroll" });
  here.view.append(loading, table);
  here.live.closest(".lab").classList.add("lab-unrun"); // until it has run, the stored examples are shown

  let worker = null, loaded = 0, isReady = false, isBusy = false, later = 0, asked = 0;
  const start = async () => {
    loading.hidden = false;
    if (!worker) {
      const model = await lab.fetch("smollm2", `../live/smollm2.js?v=${version}`);
      worker = new Worker(URL.createObjectURL(new Blob([`(${model})().listen(self)`], { type: "text/javascript" })));
      worker.postMessage({ size: bytes });
    }
    for (; loaded < parts; loaded++) {
      here.say(`Loading SmolLM2: ${Math.round(loaded / parts * bytes / 1e6)} of ${size}`);
      worker.postMessage({ given: await lab.fetch(`smollm2-${loaded}`, `smollm2-${loaded}.js?v=${version}`) });
      loading.value = loaded + 1;
    }
    loading.hidden = true;
    isReady = true;
    go.textContent = "Run SmolLM2";
  };
  const ask = here.live.ask = (of, off) => new Promise((resolve, reject) => {
    const id = ++asked;
    worker.onerror = reject;
    worker.onmessage = ({ data }) => { if (data.id === id) resolve(data); };
    worker.postMessage({ id, text: of, heads: off });
  });

  // The heads in the field, as layer and head; what is no head of this model is named.
  const named = () => heads.value.split(/[\s,;]+/).filter(Boolean).map(name => {
    const [, layer, head] = name.match(/^L?(\d+)[H.](\d+)$/i) ?? [];
    if (!(layer < LAYERS && head < HEADS)) throw new RangeError(`“${name}” isn’t a head of SmolLM2: layers go from L0 to L29, heads from H0 to H8, as in L23H3.`);
    return [Number(layer), Number(head)];
  });
  const percent = p => (p < 0.001 ? "< 0.1%" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)}%`);
  // A token that begins a word has its space before it; one that goes on with a word has dots.
  const quoted = word => `“${word.replace(/^(?=\p{L})/u, "…").replace(/^ (?=\S)/, "").replace(/\n/g, "⏎")}”`;

  const show = (whole, without) => {
    const words = new Map([...whole.best.map((id, n) => [id, whole.words[n]]), ...without.best.map((id, n) => [id, without.words[n]])]);
    const order = [...words.keys()].sort((a, b) => Math.max(whole.chances[b], without.chances[b]) - Math.max(whole.chances[a], without.chances[a]));
    const cell = (run, name, id) => make("td", { class: "lab-barred" }, make("div", { class: "lab-meter" },
      make("span", { "data-number": name, "data-exact": run.chances[id] }, percent(run.chances[id])),
      make("div", { class: "lab-gauge" }, make("div", { class: "lab-bar", style: `width: ${100 * run.chances[id]}%` }))));
    table.replaceChildren(make("table", { class: "lab-table" },
      make("thead", {}, make("tr", {}, ...["next token", "all heads", "without these"].map(head => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...order.slice(0, 7).map((id, n) => make("tr", {}, make("th", { scope: "row" }, quoted(words.get(id))),
        cell(whole, `whole-${n}`, id), cell(without, `without-${n}`, id))))));
    here.live.closest(".lab").classList.remove("lab-unrun");
    const [best] = whole.best, change = id => without.chances[id] - whole.chances[id];
    const riser = without.best.reduce((a, b) => (change(b) > change(a) ? b : a));
    const moved = id => `${quoted(words.get(id))} goes from ${percent(whole.chances[id])} to ${percent(without.chances[id])}`;
    here.say((without === whole ? `SmolLM2 expects ${quoted(words.get(best))} next (${percent(whole.chances[best])}). Name heads to ablate.`
      : `Without ${heads.value}, ${moved(best)}${riser !== best && change(riser) > 0.01 ? `, and ${moved(riser)}` : ""}.`)
      + (whole.all > whole.limit ? ` The text has ${whole.all} tokens; the model reads the first ${whole.limit} here.` : ""));
  };
  const run = async () => {
    clearTimeout(later);
    if (isBusy) { later = setTimeout(run, QUIET); return; }
    isBusy = true;
    try {
      const off = named(), now = text.value, shown = heads.value;
      if (!isReady) await start();
      here.say("The model runs …");
      const whole = await ask(now, []), without = off.length ? await ask(now, off) : whole;
      if (now === text.value && shown === heads.value) show(whole, without);
    } catch (error) {
      loading.hidden = true;
      here.say(error instanceof RangeError ? error.message : "The model could not be loaded or run here. Try again: it goes on where it stopped.");
    } finally { isBusy = false; }
  };
  here.draw(() => {
    if (isReady) { clearTimeout(later); later = setTimeout(run, QUIET); }
    else here.say(`The model, ${size}, runs in this page when you ask for it. What you type stays on your machine.`);
  });
});
