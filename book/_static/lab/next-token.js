// What token SmolLM2 expects next, with heads ablated or not. The model comes when it is asked for.
lab.define("next-token", (here, { examples, bytes, part, version }) => {
  const { make } = lab;
  const LAYERS = 30, HEADS = 9, QUIET = 500; // ms without a change, after which the model runs again
  const parts = Math.ceil(bytes / part), size = `${Math.round(bytes / 1e6)} MB`;
  const field = (name, label, value) => {
    const input = make("input", { type: "text", value, maxlength: 4000, spellcheck: "false" });
    here.field(name, label, input);
    input.addEventListener("input", () => here.changed());
    input.addEventListener("keydown", event => { if (event.key === "Enter") run(); });
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
  const above = () => document.getElementById("explorer")?.explorer?.state.head.replace(/(\d+)\.(\d+)/, "L$1H$2");
  here.button("Ablate the explorer’s head", () => { heads.value = above() ?? heads.value; run(); });
  here.button("Try every head alone", () => scan());
  const loading = make("progress", { max: parts, value: 0, hidden: true, "aria-label": "Progress" });
  const table = make("div", { class: "lab-scroll" });
  const best = make("p", { class: "lab-best" });
  here.view.append(loading, table, best);
  here.live.closest(".lab").classList.add("lab-unrun"); // until it has run, the stored examples are shown

  let worker = null, loaded = 0, isReady = false, isBusy = false, later = 0, asked = 0;
  const start = async () => {
    loading.hidden = false;
    loading.max = parts;
    if (!worker) {
      const model = await lab.fetch("smollm2", `../live/smollm2.js?v=${version}`);
      worker = new Worker(URL.createObjectURL(new Blob([`(${model})().listen(self)`], { type: "text/javascript" })));
      worker.postMessage({ size: bytes });
    }
    for (; loaded < parts; loaded++) {
      here.say(`Loading SmolLM2: ${Math.round(loaded / parts * bytes / 1e6)} of ${size}`);
      worker.postMessage({ given: await lab.fetch(`smollm2-${loaded}`, `../explorer/smollm2-${version}-${loaded}.js`) });
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

  // The heads in the field, as layer and head, all nine of a layer for its name; what is none is named.
  const named = () => heads.value.split(/[\s,;]+/).filter(Boolean).flatMap(name => {
    const [, layer, head] = name.match(/^L?(\d+)(?:[H.](\d+))?$/i) ?? [];
    if (!(layer < LAYERS && (head ?? 0) < HEADS)) throw new RangeError(`“${name}” isn’t a head of SmolLM2: layers go from L0 to L29, heads from H0 to H8, as in L23H3; L23 is all of a layer.`);
    return head === undefined ? Array.from({ length: HEADS }, (_, h) => [Number(layer), h]) : [[Number(layer), Number(head)]];
  });
  const given = () => {  // tokens begin with their space: one at the end would ask for a digit
    const now = text.value.trimEnd();
    if (!now) throw new RangeError("Write a text first.");
    return now;
  };
  const percent = p => (p < 0.001 ? "< 0.1%" : `${(100 * p).toFixed(p < 0.1 || p > 0.99 ? 1 : 0)}%`);
  // A token that begins a word has its space before it; one that goes on with a word has dots.
  const quoted = word => (word.includes("\uFFFD") ? "part of a character" : `“${word.replace(/^(?=\p{L})/u, "…").replace(/^ (?=\S)/, "").replace(/\n/g, "⏎")}”`);

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
    table.classList.remove("lab-stale");
    const [top] = whole.best, change = id => without.chances[id] - whole.chances[id];
    const riser = without.best.reduce((a, b) => (change(b) > change(a) ? b : a));
    const moved = id => `${quoted(words.get(id))} goes from ${percent(whole.chances[id])} to ${percent(without.chances[id])}`;
    here.say((without === whole ? `SmolLM2 expects ${quoted(words.get(top))} next (${percent(whole.chances[top])}). Name heads to ablate.`
      : `Without ${heads.value}, ${moved(top)}${riser !== top && change(riser) > 0.01 ? `, and ${moved(riser)}` : ""}.`)
      + (whole.all > whole.limit ? ` The text has ${whole.all} tokens; the model reads the last ${whole.limit - 1} here.` : ""));
  };
  // What a click asks for, once the model is there; nothing begins while something runs.
  const work = async task => {
    clearTimeout(later);
    if (isBusy) { later = setTimeout(() => work(task), QUIET); return; }
    isBusy = true;
    try {
      await task();
    } catch (error) {
      loading.hidden = true;
      here.say(error instanceof RangeError ? error.message : "The model could not be loaded or run here. Try again: it goes on where it stopped.");
    } finally { isBusy = false; }
  };
  const run = () => work(async () => {
    const off = named(), now = given(), shown = heads.value;
    if (!isReady) await start();
    here.say("The model runs …");
    const whole = await ask(now, []), without = off.length ? await ask(now, off) : whole;
    if (now === text.value.trimEnd() && shown === heads.value) show(whole, without);
  });
  // Each head alone, the last layer first; a change of the fields stops it.
  const scan = () => work(async () => {
    const now = given(), shown = heads.value, found = [], all = LAYERS * HEADS;
    if (!isReady) await start();
    const whole = await ask(now, []), [top] = whole.best, word = quoted(whole.words[0]);
    loading.hidden = false;
    loading.max = all;
    for (let n = all - 1; n >= 0 && now === text.value.trimEnd() && shown === heads.value; n--) {
      const layer = Math.floor(n / HEADS), head = n % HEADS;
      const { chances } = await ask(now, [[layer, head]]);
      found.push([`L${layer}H${head}`, chances[top]]);
      loading.value = found.length;
      here.say(`${found.length} of ${all} heads tried, each alone.`);
      const far = ([, p]) => Math.abs(p - whole.chances[top]), order = [...found].sort((a, b) => far(b) - far(a));
      best.replaceChildren(`${word} has ${percent(whole.chances[top])}. What changes it most, of ${found.length} heads: `,
        ...order.slice(0, 6).map(([name, p]) => {
          const chip = make("button", { type: "button", class: "lab-button" }, `${name} ${percent(p)}`);
          chip.addEventListener("click", () => { heads.value = name; here.changed(); });
          return chip;
        }), ` Half of them change it by less than ${(100 * far(order[order.length >> 1])).toFixed(1)} points.`);
    }
    loading.hidden = true;
  });
  here.say(`The model, ${size}, runs in this page when you ask for it. What you type stays on your machine.`);
  here.draw(() => {
    table.classList.toggle("lab-stale", isReady);
    if (isReady) { clearTimeout(later); later = setTimeout(run, QUIET); }
  });
});
