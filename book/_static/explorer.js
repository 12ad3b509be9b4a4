// The explorer of heads: an atlas of all heads of a model, and where one of them looks in a sentence.
// What it shows is in explorer/*.js, scripts that hand over data: a page opened from a file may not
// fetch. Written by experiments/explorer_maps.py and book/_ext/mha_book_explorer.py.
(() => {
  const base = document.currentScript.src.replace(/[^/]*$/, "explorer/");
  const waiting = {}, loaded = {};

  window.mhaExplorerTake = (name, data) => { loaded[name] = data; };

  // Load one of the data scripts, once.
  const load = (name, version) => waiting[name] ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${base}${name}.js${version ? `?v=${version.slice(0, 8)}` : ""}`;
    script.onload = () => {
      script.remove();
      return loaded[name] ? resolve(loaded[name]) : reject(new Error(name));
    };
    script.onerror = () => { script.remove(); delete waiting[name]; reject(new Error(name)); };
    document.head.append(script);
  });

  const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const el = (tag, attributes = {}, ...children) => {
    const svg = ["svg", "rect", "path", "g", "text", "title"].includes(tag);
    const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === false || value === null || value === undefined) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children);
    return node;
  };
  const readable = token => token.replace("<|endoftext|>", "<first>").replace(/\n */g, "⏎").replace(/^ +$/, "␣").trim();
  const two = x => x.toFixed(2);
  // Whether a token goes on with the word of the token before.
  const joined = (tokens, j) => /^##/.test(tokens[j])
    || (j > 0 && /^\p{L}/u.test(tokens[j]) && /^ ?\p{L}+$/u.test(tokens[j - 1]) && tokens.some(token => token.startsWith(" ")));
  const named = head => `L${head.replace(".", "H")}`;
  // Where the word at `place` of one list is in another, as near as can be; -1 where it isn't.
  const sameWord = (from, place, tokens) => tokens.reduce((best, token, j) => (token === from[place]
    && (best < 0 || Math.abs(j - place) < Math.abs(best - place)) ? j : best), -1);
  const signed = (x, digits = 2) => (Number(x.toFixed(digits)) ? x < 0 ? "−" : "+" : "") + Math.abs(x).toFixed(digits);

  // What all heads of a model do with one sentence, as numbers.
  class Maps {
    constructor(packed, tokens, layers, heads, causal) {
      Object.assign(this, { tokens, layers, heads, causal, count: tokens.length });
      this.weights = bytes(packed.weights);
      this.values = bytes(packed.values);
      this.changes = new DataView(bytes(packed.without).buffer);
    }
    get isDone() { return true; }  // stored with every head ablated
    sees(i, j) { return !this.causal || j <= i; }
    weight(layer, head, i, j) {
      if (!this.sees(i, j)) return 0;
      const n = this.count, all = this.causal ? n * (n + 1) / 2 : n * n;
      const place = this.causal ? i * (i + 1) / 2 + j : i * n + j;
      return this.weights[(layer * this.heads + head) * all + place] / 255;
    }
    brought(layer, head, i, j) {
      const at = (layer * this.heads + head) * this.count + j;
      return this.weight(layer, head, i, j) * this.values[at] / 255;
    }
    // SmolLM2: the rise of the loss of token j; MiniLM: how far the sentence's embedding turns.
    without(layer, head, j) {
      const place = layer * this.heads + head;
      if (!this.causal) return this.changes.getInt16(2 * place, true) / 1e5;
      return j ? this.changes.getInt16(2 * (place * (this.count - 1) + j - 1), true) / 1e3 : 0;
    }
  }

  const words = text => new Set(text.split(" "));
  const PRONOUNS = words("he she it they him her them his its their");
  const LITTLE = words("the and but for with from are was were been has have had did not that this which because than "
    + "then too very can could will would into when while");

  // The same of a sentence that the model has read in this page.
  class OwnMaps extends Maps {
    constructor({ tokens, weights, values }, layers, heads) {
      super({ weights: "", values: "", without: "" }, tokens, layers, heads, false);
      Object.assign(this, { weights, values, changes: new Float64Array(layers * heads).fill(NaN) });
    }
    weight(layer, head, i, j) { return this.weights[((layer * this.heads + head) * this.count + i) * this.count + j]; }
    brought(layer, head, i, j) {
      return this.weight(layer, head, i, j) * this.values[(layer * this.heads + head) * this.count + j];
    }
    without(layer, head) { return this.changes[layer * this.heads + head]; }
    get isDone() { return !this.changes.some(Number.isNaN); }
    // Where there is something to see: a pronoun or a telling word that looks at another one, not next to it.
    get look() {
      const isPronoun = this.tokens.map(token => PRONOUNS.has(token));
      const isWord = this.tokens.map((token, i) => /^[\p{L}\p{N}]{3}/u.test(token) && !LITTLE.has(token) && !isPronoun[i]);
      let best = { layer: 0, head: 0, query: 0, weight: -1 };
      for (let layer = 0; layer < this.layers; layer++) for (let head = 0; head < this.heads; head++)
        for (let query = 0; query < this.count; query++) for (let key = 0; key < this.count; key++) {
          const weight = this.weight(layer, head, query, key)
            + isPronoun[query] / 2 - (isWord[query] || isPronoun[query] ? 0 : 1) - (isWord[key] ? 0 : 2)
            - (Math.abs(query - key) < 3 || this.tokens[query] === this.tokens[key] ? 1 : 0);
          if (weight > best.weight) best = { layer, head, query, weight };
        }
      return best;
    }
  }

  // MiniLM in a worker. Its weights come part by part when a reader asks for them; where a part
  // fails, the next try goes on from there.
  const live = {
    part: 0, asked: 0, isReady: false,
    async start({ parts, version, limit, code }, progress) {
      if (!live.worker) {
        const model = await load("../live/minilm", code);
        const text = new Blob([`(${model})().listen(self)`], { type: "text/javascript" });
        live.worker = new Worker(URL.createObjectURL(text));
        live.worker.onmessage = ({ data }) => live.heard?.(data);
      }
      const name = n => `live-${n}`;
      for (; live.part < parts; live.part++) {
        for (let n = live.part; n < Math.min(parts, live.part + 3); n++) load(name(n), version).catch(() => {});
        live.worker.postMessage({ given: await load(name(live.part), version), limit });
        delete loaded[name(live.part)];
        delete waiting[name(live.part)];
        progress(live.part + 1);
      }
      live.isReady = true;
    },
    // The maps of a text; how far the embedding moves without each head comes afterwards.
    run(text, later) {
      return new Promise((resolve, reject) => {
        const id = ++live.asked;
        live.worker.onerror = reject;
        live.heard = data => {
          if (data.id !== id) return;
          if (data.tokens) resolve(data);
          else later(data);
        };
        live.worker.postMessage({ id, text });
      });
    },
  };
  const ONE_LINE = 36; // tokens of a sentence that stays on one line
  const LONGEST = 1000; // characters of an own sentence
  const FEW_LINES = 24; // tokens that a phone wraps; more scroll
  const BRIGHT = 0.5; // the weight that has the full color in a small explorer

  const KEYS = ["model", "head", "sentence", "token", "goal", "measure", "show", "beside", "see"];
  const NAMES = { smollm2: "SmolLM2", minilm: "MiniLM" };
  const LOOK = "look", EVERY = "this look, in every head", EFFECT = "effect";
  const TITLES = { [LOOK]: EVERY, [EFFECT]: "without it, on this sentence", "without it": "without it, on speeches" };
  const SHOWS = { weight: "weights", value: "weight × length of the value", without: "what ablating it does" };
  // The reader's last two sentences, and what an address calls their texts.
  const OWN = { own: "text", own2: "before" };
  const EXAMPLE = "The bank by the river raised its interest rates.";

  class Explorer {
    constructor(root, index) {
      this.root = root;
      this.index = index;
      this.small = root.dataset.form === "small";
      this.narrow = matchMedia("(max-width: 576px)");
      this.state = { ...this.opening(), ...this.fromAddress() };
      this.repair();
      this.build();
      this.update();
      window.addEventListener("hashchange", () => {
        if (!location.hash.startsWith(`#${root.id}:`)) return;
        this.state = { ...this.state, ...this.fromAddress() };
        this.chosen = false;
        this.repair();
        this.update();
        this.root.scrollIntoView();
      });
      // Back from a link of the page: the entry left behind knows what was seen there.
      window.addEventListener("popstate", event => {
        const kept = event.state?.[root.id];
        if (kept === undefined) return;
        this.state = { ...this.opening(), ...(kept ? this.asked(kept) : this.fromAddress()) };
        this.chosen = false;
        this.repair();
        this.update();
      });
      this.narrow.addEventListener("change", () => {
        for (const pane of this.panes) pane.line.dataset.name = "";
        this.update();
      });
      if (location.hash.startsWith(`#${root.id}:`)) root.scrollIntoView();
      if (root.dataset.play && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.play(true);
    }

    // State: model, sentence, measure, show, token, and one or two heads, each in a sentence.

    opening() {
      const { model, head, sentence, token, measure, show, beside, see } = this.root.dataset;
      return { model, head, sentence, token, measure, show, beside, see };
    }
    fromAddress() {
      const start = `#${this.root.id}:`, isHere = location.hash.startsWith(start);
      // A link from a small explorer asks behind a question mark: other scripts of the page take
      // the part behind # of any link for the name of an element.
      const text = isHere ? location.hash.slice(start.length) : this.small ? "" : location.search;
      return text ? this.asked(text) : {};
    }
    asked(text) {
      const found = Object.fromEntries([...new URLSearchParams(text)]
        .filter(([key]) => [...KEYS, ...Object.values(OWN)].includes(key)));
      return { beside: undefined, see: undefined, goal: undefined, ...found };
    }
    toAddress() {
      // Texts come first: what a message cuts off the end of a link, a period say, isn't theirs.
      const s = this.state, used = Object.keys(OWN).filter(key => [s.sentence, s.see].includes(key));
      const texts = used.map((key, n) => [Object.values(OWN)[n], this.index.sentences[key].text]);
      const kept = [...texts, ...KEYS.map(key => [key, used.length === 1 && s[key] === "own2" ? "own" : s[key]])]
        .filter(([, value]) => value !== undefined && value !== "");
      const text = kept.map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
      return text;
    }
    // Whatever an address asks for, show something that is there.
    repair() {
      const s = this.state, { models, sentences } = this.index;
      if (!models[s.model]) s.model = "smollm2";
      const { layers, heads, measures } = models[s.model];
      const isHead = text => {
        const [layer, head] = (text || "").split(".").map(Number);
        return layer >= 0 && layer < layers && head >= 0 && head < heads;
      };
      // A sentence that is not here yet: another one until the reader has asked for the model.
      if (Object.entries(OWN).some(([key, name]) => [s.sentence, s.see].includes(key)
        && s[name] !== undefined && sentences[key]?.text !== s[name])) {
        if (!this.small) this.wanted = { ...s };
        s.sentence = "";
      }
      if (!sentences[s.sentence]?.[s.model]) Object.assign(s, { sentence: "fresh", token: "" });
      const look = sentences[s.sentence][s.model].look;
      if (!isHead(s.head)) s.head = `${look.layer}.${look.head}`;
      if (s.beside && !isHead(s.beside)) s.beside = undefined;
      if (!s.beside || !sentences[s.see]?.[s.model]) s.see = undefined;
      if (!measures[s.measure] && s.measure !== EFFECT) s.measure = LOOK;
      if (!SHOWS[s.show]) s.show = "weight";
      const count = sentences[s.sentence][s.model].tokens.length;
      if (!/^\d+$/.test(s.token ?? "") || Number(s.token) >= count) s.token = look.query;
      s.token = String(Number(s.token));
      if (!/^\d+$/.test(s.goal ?? "") || Number(s.goal) >= count) s.goal = undefined;
    }
    set(change, write = true) {
      const texts = Object.entries(OWN).map(([key, name]) => [name, this.index.sentences[key]?.text]);
      this.state = { ...this.state, ...Object.fromEntries(texts), ...change };
      this.repair();
      if (write) history.replaceState(null, "", `#${this.root.id}:${this.toAddress()}`);
      return this.update();
    }
    pick(layer, head) {
      const name = `${layer}.${head}`;
      this.chosen = true;
      return this.set(this.second ? { beside: name } : { head: name });
    }

    // What is on the page.

    build() {
      const select = (key, name, options) => el("label", { class: "hx-select" }, `${name} `,
        el("select", { "data-key": key, onchange: e => this.choose(key, e.target.value) },
          ...Object.entries(options).map(([value, text]) => el("option", { value }, text))));
      const titles = Object.entries(this.index.sentences).map(([key, s]) => [key, s.title]);
      this.player = el("button", { type: "button", onclick: () => this.play(!this.timer) }, "Play");
      this.whole = el("a", { class: "hx-whole" }, "Open in the whole explorer");
      this.controls = el("div", { class: "hx-controls" },
        select("model", "Model", NAMES),
        select("sentence", "Sentence", Object.fromEntries(titles)),
        this.small ? this.player : select("show", "Show", SHOWS));
      this.own = this.index.live && !this.small ? this.form() : "";
      if (this.own) this.controls.querySelector("[data-key=sentence]").append(el("option", { value: "" }, "your own …"));
      this.measures = el("select", { "data-key": "measure",
        onchange: e => this.choose("measure", e.target.value) });
      this.goal = el("select", { "data-key": "goal", onchange: e => this.choose("goal", e.target.value || undefined) });
      this.which = el("span", { class: "hx-which", hidden: true }, "A click in the atlas sets: ",
        ...["head A", "head B"].map((name, number) => el("label", {}, el("input", {
          type: "radio", name: `${this.root.id}-which`, checked: !number,
          onchange: () => { this.second = !!number; this.update(); } }), ` ${name} `)));
      this.grid = el("div", { class: "hx-grid", role: "grid", onkeydown: e => this.steer(e),
        onclick: e => this.clicked(e) });
      this.scale = el("div", { class: "hx-scale", "aria-hidden": "true" });
      this.reading = el("p", { class: "hx-reading" });
      this.top = el("p", { class: "hx-top" });
      this.atlas = el("div", { class: "hx-atlas" },
        el("div", { class: "hx-atlas-head" }, ...(this.small ? [el("span", { class: "hx-across" })] : [
          el("label", { class: "hx-select" }, "Color: ", this.measures),
          el("label", { class: "hx-select" }, "to ", this.goal), this.which]), this.scale),
        ...(this.small ? [] : [el("span", { class: "hx-across" })]), this.grid, this.reading, this.top);
      this.panes = [0, 1].map(number => this.pane(number));
      this.say = el("p", { class: "hx-say", role: "status" });
      this.rows = el("div", { class: "hx-rows wide-table" });
      this.table = el("details", { class: "hx-table", ontoggle: () => this.fill() },
        el("summary", {}, "The same as a table"), this.rows);
      this.see = el("p", { class: "hx-see" });
      const special = el("p", { class: "hx-effect" }, "[CLS] and [SEP] are special tokens that MiniLM puts around every sentence.");
      const tools = el("div", { class: "hx-tools" }, el("div", { class: "hx-controls" },
        el("label", { class: "hx-two" }, el("input", { type: "checkbox", "data-key": "two",
          onchange: e => this.compare(e.target.checked) }), "two heads"),
        el("button", { type: "button", onclick: e => this.share(e.target) }, "Copy link")));
      const panes = el("div", { class: "hx-panes" }, ...this.panes.map(pane => pane.box));
      const maps = el("div", { class: "hx-panes" }, ...this.panes.map(pane => pane.map));
      const more = this.small ? [this.root.dataset.play ? special : ""] : this.panes.map(pane => pane.effect);
      const told = el("div", { class: "hx-found" }, this.say, ...more);
      const parts = this.small ? [this.controls, panes, told, this.atlas, this.whole]
        : [this.controls, this.see, panes, told, this.own, this.atlas, el("div", { class: "hx-below" }, maps, tools), this.table];
      const live = el("div", { class: "hx-live" }, ...parts);
      this.root.replaceChildren(live);
      this.root.classList.add("hx-on");
      for (const kind of ["pointerdown", "keydown"])
        live.addEventListener(kind, e => {
          if (this.timer && e.target !== this.player) this.play(false);
        });
    }

    // The reader's own sentence.
    form() {
      const size = Math.round(this.index.live.bytes / 1e6), id = `${this.root.id}-own`;
      this.text = el("input", { type: "text", id, autocomplete: "off", "aria-describedby": `${id}-note`,
        value: EXAMPLE,
        onclick: () => { if (this.text.value === EXAMPLE) this.text.select(); } });
      this.go = el("button", { type: "submit", class: "hx-go" }, `Run in MiniLM (loads ${size} MB)`);
      this.loading = el("progress", { max: this.index.live.parts, value: 0, hidden: true, "aria-label": "Loading MiniLM" });
      this.note = el("p", { class: "hx-note", id: `${id}-note`, role: "status" },
        `The model runs in this page, and what you type stays on your machine. Its weights are ${size} MB; `
        + "they are loaded once, and your browser keeps them.");
      return el("form", { class: "hx-own", onsubmit: e => { e.preventDefault(); this.read(); } },
        el("div", { class: "hx-field" }, el("label", { for: id }, "Your own sentence"), this.text, this.go),
        this.loading, this.note);
    }
    async read() {
      if (this.busy) return;
      this.busy = true;
      this.own.classList.add("hx-told");
      const { live: info, sentences } = this.index;
      try {
        if (!live.isReady) {
          this.loading.hidden = false;
          this.note.textContent = "Loading MiniLM …";
          await live.start(info, part => {
            this.loading.value = part;
            const [done, all] = [part / info.parts, 1].map(share => Math.round(share * info.bytes / 1e6));
            if (part % 6 === 0) this.note.textContent = `Loading MiniLM: ${done} of ${all} MB`;
          });
          this.loading.hidden = true;
          this.go.textContent = "Run in MiniLM";
          this.loaded(true);
        }
        // What is in the field now: a reader may write on while the model loads.
        const letters = [...this.text.value.replace(/\p{Cs}/gu, "\uFFFD")], text = letters.slice(0, LONGEST).join("");
        const wanted = this.wanted?.text === text ? this.wanted : null;
        if (wanted?.before !== undefined) await this.run(wanted.before);
        // A reader who compares keeps head and token.
        const s = this.state, before = sentences[s.sentence].minilm.tokens;
        const found = await this.run(text);
        const again = place => (this.looked && place !== undefined ? sameWord(before, Number(place), found.tokens) : "");
        const asked = wanted ?? {
          ...(s.model === "minilm" && (this.chosen || this.looked)
            ? { head: s.head, token: again(s.token), goal: again(s.goal) } : { head: "", token: "", goal: undefined }),
          beside: undefined, see: undefined, sentence: "own" };
        this.wanted = null;
        await this.set({ ...asked, model: "minilm", text });
        const notes = [];
        if (found.all > info.limit) notes.push(`It has ${letters.length > LONGEST ? "more than " : ""}${found.all} tokens: `
          + `MiniLM reads the first ${info.limit} here, in bold above.`);
        else if (letters.length > LONGEST) notes.push(`Only the first ${LONGEST} characters are read.`);
        notes.push(`${found.tokens.length} tokens through six layers in ${(found.took / 1000).toFixed(2)} s on your machine.`);
        if (found.tokens.includes("[UNK]")) notes.push("[UNK] is what MiniLM’s vocabulary lacks.");
        if (sentences.own2) {
          const other = sentences.own2.minilm.embedding;
          notes.push(`Cosine of its embedding and that of your sentence before: ${two(found.embedding.reduce((sum, x, i) => sum + x * other[i], 0))}.`);
        }
        this.note.textContent = notes.join(" ");
        if (this.narrow.matches) this.text.blur();
        if (this.root.getBoundingClientRect().top < 0) this.root.scrollIntoView();
      } catch (error) {
        this.loading.hidden = true;
        this.note.textContent = "The model could not be loaded or run here. Try again: it goes on where it stopped.";
      } finally { this.busy = false; }
    }
    // One sentence through the model; the sentence before stays in the lists.
    async run(text) {
      const { sentences, models: { minilm: { layers, heads } } } = this.index;
      const heard = maps => ({ at, without }) => {
        maps.changes.set(without, at);
        if (this.panes.some(pane => pane.maps === maps)) this.moved();
        // What a new sentence has stopped goes on when that is done.
        const other = sentences.own2?.minilm.maps;
        if (maps.isDone && other && !other.isDone) live.run(sentences.own2.text, heard(other));
      };
      let maps = null;
      const found = await live.run(text, data => heard(maps)(data));
      maps = new OwnMaps(found, layers, heads);
      const title = `own: ${text.slice(0, 24).trim() || "(empty)"}${text.length > 24 ? "…" : ""}`;
      if (sentences.own && sentences.own.text !== text)
        sentences.own2 = { ...sentences.own, title: sentences.own.title.replace("own", "before") };
      sentences.own = { title, text, read: found.read,
        see: "Opened at a head with a strong look from one word to another. Choose any token, any head.",
        minilm: { tokens: found.tokens, look: maps.look, maps, id: live.asked, embedding: found.embedding } };
      for (const box of [this.controls.querySelector("[data-key=sentence]"), ...this.panes.map(pane => pane.sentence)])
        for (const key of ["own2", "own"]) {
          box.querySelector(`[value=${key}]`)?.remove();
          if (sentences[key]) box.prepend(el("option", { value: key }, sentences[key].title));
        }
      return found;
    }
    // Whether the model has been loaded in this tab: then a link may take it from the browser's store unasked.
    loaded(isNow) {
      try {
        if (isNow) sessionStorage.setItem("mha-live", "yes");
        return !!sessionStorage.getItem("mha-live");
      } catch { return false; }
    }
    async share(button) {
      if (!this.wanted) await this.set({});
      const isCopied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
      button.textContent = isCopied ? "Copied" : "Copy it from the address bar";
      setTimeout(() => { button.textContent = "Copy link"; }, 4000);
    }
    // Some more heads have been ablated, one by one.
    moved() {
      for (const pane of this.panes.filter(pane => !pane.box.hidden)) this.weigh(pane);
      if (this.state.measure === EFFECT) this.shade();
      if (this.state.show === "without" && this.panes[0].maps.isDone) this.tell();
    }

    pane(number) {
      const pane = { number, hover: null };
      const options = () => el("select", { onchange: () => {
        const name = `${pane.layer.value}.${pane.head.value}`;
        this.chosen = true;
        this.set(number ? { beside: name } : { head: name });
      } });
      pane.layer = options();
      pane.head = options();
      pane.sentence = el("select", { onchange: e => this.set({ see: e.target.value }) },
        ...Object.entries(this.index.sentences).map(([value, s]) => el("option", { value }, s.title)));
      pane.arcs = el("svg", { class: "hx-arcs", "aria-hidden": "true" });
      pane.line = el("div", { class: "hx-tokens", role: "group",
        onkeydown: e => this.walk(e, pane),
        onpointerover: e => this.hovered(e, pane), onpointerleave: () => this.hover(pane, null) });
      pane.inner = el("div", {}, pane.arcs, pane.line);
      pane.strip = el("div", { class: "hx-strip", onscroll: () => this.fade(pane) }, pane.inner);
      pane.map = el("div", { class: "hx-map", onpointerleave: () => this.hover(pane, null) });
      const second = [el("label", { class: "hx-select", hidden: this.small }, "in ", pane.sentence)];
      pane.title = el("p", { class: "hx-title" }, el("b", { class: "hx-name" }, number ? "B: " : "A: "),
        el("label", {}, "Layer ", pane.layer), " ", el("label", {}, "head ", pane.head), " ",
        ...(number ? second : []));
      pane.effect = el("p", { class: "hx-effect" });
      pane.box = el("div", { class: "hx-pane", hidden: !!number }, pane.title, pane.strip);
      new ResizeObserver(() => this.arcs(pane)).observe(pane.line);
      return pane;
    }

    // What a reader does.

    choose(key, value) {
      if (!value && key === "sentence") {
        this.controls.querySelector("[data-key=sentence]").value = this.state.sentence;
        return this.text.focus();
      }
      // Another model or sentence opens where there is something to see.
      // A head that the reader has chosen stays, and the sentence offers its own.
      const change = { [key]: value };
      // MiniLM has no loss for each token: what ablating a head does is a number for each head.
      if (key === "show" && value === "without" && this.state.model === "minilm") change.measure = EFFECT;
      if (key === "sentence" && value in OWN) change.model = "minilm";
      if (key === "model" || key === "sentence") {
        this.wanted = null;
        this.looked = false;
        change.goal = undefined;
      }
      if (key === "model") Object.assign(change, { head: "", token: "", beside: undefined });
      if (key === "sentence") {
        const stays = !this.small && (this.chosen || this.state.beside);
        Object.assign(change, { token: "", head: stays ? this.state.head : "" });
      }
      if (key === "model") this.chosen = false;
      return this.set(change);
    }
    compare(isOn) {
      if (!isOn) this.second = false;
      this.chosen = true;
      const [layer, head] = this.state.head.split(".").map(Number);
      const other = `${layer}.${(head + 1) % this.index.models[this.state.model].heads}`;
      return this.set({ beside: isOn ? other : undefined });
    }
    clicked(event) {
      const cell = event.target.closest("[data-head]");
      if (!cell) return;
      this.pick(...cell.dataset.head.split("."));
      cell.focus({ preventScroll: true });
    }
    steer(event) {
      const cell = event.target.closest("[data-head]");
      if (!cell) return;
      const { layers, heads } = this.index.models[this.state.model];
      let [layer, head] = cell.dataset.head.split(".").map(Number);
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
        Home: [-99, 0], End: [99, 0] };
      if (event.key === " " || event.key === "Enter") { event.preventDefault(); this.pick(layer, head); }
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      if (!this.wide) step.reverse();
      layer = Math.min(layers - 1, Math.max(0, layer + step[0]));
      head = Math.min(heads - 1, Math.max(0, head + step[1]));
      const next = this.grid.querySelector(`[data-head="${layer}.${head}"]`);
      next.tabIndex = 0;
      next.focus();
      this.pick(layer, head);
    }
    walk(event, pane) {
      const buttons = [...pane.line.children], at = buttons.indexOf(event.target);
      const goal = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (at < 0 || goal === undefined) return;
      event.preventDefault();
      const next = buttons[Math.min(buttons.length - 1, Math.max(0, goal))];
      next.focus();
      this.look(pane, buttons.indexOf(next));
    }
    look(pane, token) {
      pane.hover = null;
      this.looked = true;
      if (pane.number && this.state.see) { pane.token = token; this.draw(pane); this.tell(pane); }
      else { this.panes[1].token = null; this.set({ token: String(token) }); }
    }
    hovered(event, pane) {
      const button = event.target.closest("button");
      if (button && event.pointerType === "mouse") this.hover(pane, [...pane.line.children].indexOf(button));
    }
    hover(pane, token) {
      if (pane.hover === token) return;
      pane.hover = token;
      this.draw(pane);
      if (this.state.measure === LOOK) this.shade();
      this.tell(pane);
    }
    // From one telling word to the next, longest at the one that the question is about. It waits
    // while a reader points at something here or has the focus in it.
    play(isOn) {
      clearTimeout(this.timer);
      this.timer = null;
      this.player.textContent = isOn ? "Pause" : "Play";
      if (isOn) this.say.removeAttribute("role");
      else this.say.setAttribute("role", "status");
      if (!isOn) return;
      const { model, sentence } = this.state, { query } = this.index.sentences[sentence][model].look;
      const next = () => {
        const words = this.telling(), isRead = [...this.player.closest(".hx-live").children]
          .some(part => !part.contains(this.player) && part.matches(":hover, :focus-within"));
        if (words.length && !document.hidden && !isRead) {
          const after = words.find(i => i > Number(this.state.token)) ?? words[0];
          this.set({ token: String(after) }, false);
        }
        wait();
      };
      const wait = () => {
        this.timer = setTimeout(next, Number(this.state.token) === query ? 5000 : 2000);
      };
      wait();
    }
    // Words that look most at another word: no mark, no special token on either side.
    telling() {
      const { maps, at } = this.panes[0];
      if (!maps) return [];
      const isWord = maps.tokens.map(token => /[\p{L}\p{N}]/u.test(token) && !/^(\[.*\]|<\|.*\|>)$/.test(token));
      const all = maps.tokens.map((_, i) => i), goal = i => {
        const row = all.map(j => maps.weight(...at, i, j));
        return row.indexOf(Math.max(...row));
      };
      const found = all.filter(i => isWord[i] && goal(i) !== i && isWord[goal(i)]);
      return found.length > 1 ? found : all;
    }

    // From the state to the page.

    async update() {
      const s = this.state, isWaiting = this.wanted && this.own, { sentences } = this.index;
      this.root.classList.toggle("hx-waiting", !!isWaiting);
      for (const key of ["model", "sentence", "show"]) {
        const box = this.controls.querySelector(`[data-key=${key}]`);
        if (box) box.value = isWaiting && key === "sentence" ? "" : s[key];
      }
      const two = this.root.querySelector("[data-key=two]");
      if (two) two.checked = !!s.beside;
      this.which.hidden = !s.beside;
      this.root.classList.toggle("hx-pair", !!s.beside);
      const { title, box } = this.panes[0];  // of one head: among the controls
      if (s.beside) box.prepend(title);
      else if (title.parentNode !== this.controls) this.controls.lastChild.before(title);
      this.whole.href = `explorer.html?${this.toAddress()}#explorer`;
      const { text, see, read = text.length, [s.model]: { look } } = sentences[s.sentence];
      const own = `${look.layer}.${look.head}`, isOwn = s.sentence in OWN;
      const offer = (words, act) => el("button", { type: "button", class: "hx-try", onclick: () => {
        this.panes[0].layer.focus();
        act();
      } }, words);
      this.see.replaceChildren(...(isWaiting ? [el("b", {}, this.wanted.text)] : [
        ...(read < text.length ? [el("b", {}, text.slice(0, read)), el("span", { class: "hx-unread" }, `${text.slice(read)} `)] : []),
        isOwn && s.head !== own ? "" : `${see} `,
        ...(s.head === own ? [] : [offer(`try ${named(own)}`, () => {
          this.chosen = this.looked = false;
          this.set({ head: own, token: "", goal: undefined });
        })]),
        ...(s.sentence === "own" && sentences.own2 && !s.beside ? [offer("compare with the sentence before", () => {
          this.chosen = true;
          this.set({ beside: s.head, see: "own2" });
        })] : [])]));
      if (isWaiting && this.offered !== this.wanted) {
        this.offered = this.wanted;
        this.text.value = this.wanted.text;
        this.own.classList.add("hx-told");
        if (live.isReady || this.loaded()) this.read();
        else this.note.prepend("This link has a sentence of its own: load the model to see it. ");
      }
      const heads = [[s.head, s.sentence], [s.beside, s.see || s.sentence]];
      const wanted = heads.map(([name, sentence], number) => {
        const pane = this.panes[number];
        pane.box.hidden = pane.effect.hidden = !name;
        pane.map.hidden = !name || (s.show === "without" && s.model === "smollm2");
        return name ? this.ready(pane, s.model, sentence, name.split(".").map(Number)) : null;
      });
      try {
        await Promise.all(wanted);
      } catch (error) {
        this.say.textContent = "The data of this sentence could not be loaded.";
        return;
      }
      if (s !== this.state) return;
      this.shade();
      for (const pane of this.panes.filter(pane => !pane.box.hidden)) this.draw(pane);
      this.tell();
      this.fill();
    }

    async ready(pane, model, sentence, [layer, head]) {
      const { layers, heads } = this.index.models[model];
      const { tokens, sha256, maps, id = "" } = this.index.sentences[sentence][model];
      const packed = maps ?? await load(`${model}-${sentence}`, sha256);
      const name = `${model}-${sentence}${id}`;
      if (pane.name !== name) {
        pane.maps = maps ?? new Maps(packed, tokens, layers, heads, model === "smollm2");
        Object.assign(pane, { name, token: null, hover: null });
      }
      Object.assign(pane, { at: [layer, head] });
      for (const [box, count, value] of [[pane.layer, layers, layer], [pane.head, heads, head]]) {
        if (box.length !== count)
          box.replaceChildren(...Array.from({ length: count }, (_, n) => el("option", { value: n }, `${n}`)));
        box.value = value;
      }
      if (pane.number) pane.sentence.value = sentence;
    }

    // The atlas: a cell for each head; layers go across, on a phone down, as they do where a small one is lower for it.
    shade() {
      const s = this.state, { layers, heads, measures } = this.index.models[s.model];
      const wide = this.wide = !this.narrow.matches && !(this.small && heads > layers);
      const sides = wide ? [heads, layers] : [layers, heads];
      if (this.shown !== `${s.model} ${wide}`) {
        this.measures.replaceChildren(...[LOOK, EFFECT, ...Object.keys(measures)].map(name =>
          el("option", { value: name }, TITLES[name] ?? name)));
        this.grid.style.setProperty("--hx-across", sides[1]);
        const order = wide ? "layers across, heads down" : "heads across, layers down";
        this.grid.setAttribute("aria-label", `Heads of ${NAMES[s.model]}: ${order}`);
        this.grid.replaceChildren(el("div", { class: "hx-axis", "aria-hidden": "true" }, el("span"),
          ...Array.from({ length: sides[1] }, (_, over) => el("span", {}, `${over}`))),
        ...Array.from({ length: sides[0] }, (_, down) => el("div", { role: "row", "data-at": down },
          ...Array.from({ length: sides[1] }, (_, over) => el("div", { role: "gridcell", class: "hx-cell",
            "data-head": wide ? `${over}.${down}` : `${down}.${over}` })))));
        this.atlas.querySelector(".hx-across").textContent =
          `The ${layers * heads} heads of ${NAMES[s.model]} (${order})${this.small ? ", by this look" : ""}. Choose one:`;
        this.shown = `${s.model} ${wide}`;
      }
      this.measures.value = s.measure;
      const { name, maps } = this.panes[0];
      if (maps && this.goal.dataset.name !== name) {
        this.goal.dataset.name = name;
        this.goal.replaceChildren(el("option", { value: "" }, "its strongest"),
          ...maps.tokens.map((token, j) => el("option", { value: j }, `“${readable(token)}”`)));
      }
      this.goal.value = s.goal ?? "";
      if (this.goal.parentNode) this.goal.parentNode.hidden = s.measure !== LOOK;
      const measure = s.measure === LOOK ? this.looks() : s.measure === EFFECT ? this.effects() : measures[s.measure];
      if (!measure) return;
      const { trained, even, untrained } = measure;
      const isEffect = [EFFECT, "without it"].includes(s.measure);
      const largest = isEffect ? Math.max(1e-9, ...trained.flat().filter(x => !Number.isNaN(x))) : this.small ? BRIGHT : 1;
      for (const cell of this.grid.querySelectorAll("[data-head]")) {
        const [layer, head] = cell.dataset.head.split("."), value = trained[layer][head];
        // Most heads are missed little: the root of the share tells them apart.
        const share = (isEffect ? Math.sqrt : Number)(Math.abs(value) / largest);
        const isChosen = cell.dataset.head === (this.second ? s.beside : s.head);
        const words = `layer ${layer}, head ${head}: ${this.amount(measure, value)}`;
        cell.style.setProperty("--hx-share", `${Math.round(100 * Math.min(1, share || 0))}%`);
        cell.classList.toggle("hx-less", value < 0);
        cell.classList.toggle("hx-first", cell.dataset.head === s.head);
        cell.classList.toggle("hx-second", cell.dataset.head === s.beside);
        cell.setAttribute("aria-label", words);
        cell.setAttribute("aria-selected", isChosen);
        cell.tabIndex = isChosen ? 0 : -1;
        cell.title = words;
      }
      const marks = [["hx-even", even], ["hx-drawn", untrained && Math.max(...untrained.flat())]];
      this.scale.replaceChildren(el("span", {}, "0"), el("span", { class: "hx-bar" },
        ...marks.filter(([, at]) => at !== undefined && !isEffect).map(([name, at]) =>
          el("i", { class: name, style: `left:${100 * at / largest}%` }))),
        el("span", {}, isEffect ? largest.toPrecision(2) : this.small ? `≥ ${largest}` : "1"));
      const [layer, head] = (this.second ? s.beside : s.head).split(".").map(Number);
      const words = [`Layer ${layer}, head ${head}: ${this.amount(measure, trained[layer][head])}`];
      if (even !== undefined) words.push(`a head that attends evenly ${two(even)}`);
      if (untrained) words.push(`random weights in this place ${two(untrained[layer][head])}, `
        + `at most ${two(Math.max(...untrained.flat()))} in any`);
      this.reading.textContent = `${words.join("; ")}. ${measure.note}`;
      const order = trained.flatMap((row, l) => row.map((value, h) => [value, l, h]));
      order.sort((a, b) => (b[0] || 0) - (a[0] || 0));
      const focus = [...this.top.children].indexOf(document.activeElement);
      this.top.replaceChildren("Highest: ", ...order.slice(0, this.small ? 4 : 8).map(([value, l, h]) =>
        el("button", { type: "button", class: "hx-chip", onclick: () => this.pick(l, h) },
          `${named(`${l}.${h}`)} `, el("small", {}, isEffect ? value.toFixed(3) : value < 0.01 ? value.toFixed(4) : two(value)))));
      this.top.children[focus]?.focus();
    }
    // How much each head gives, from the token that looks, to the one that is asked for or that the chosen head looks at.
    looks() {
      const pane = this.panes[this.second ? 1 : 0], { maps, at } = pane;
      if (!maps) return null;
      const i = this.tokenOf(pane), row = maps.tokens.map((_, j) => maps.weight(...at, i, j));
      const asked = this.state.goal === undefined ? -1 : sameWord(this.panes[0].maps.tokens, Number(this.state.goal), maps.tokens);
      const j = asked < 0 ? row.indexOf(Math.max(...row)) : asked, seen = maps.tokens.filter((_, k) => maps.sees(i, k)).length;
      const trained = Array.from({ length: maps.layers }, (_, l) =>
        Array.from({ length: maps.heads }, (_, h) => maps.weight(l, h, i, j)));
      const name = `“${readable(maps.tokens[i])}” gives “${readable(maps.tokens[j])}”`;
      const resting = trained.flat().filter(x => x >= 0.5).length;
      const note = j || this.small ? "" : `Many heads rest on the first token: here ${resting} of `
        + `${maps.layers * maps.heads} give it half of their attention or more.`;
      return { trained, even: 1 / seen, name, note };
    }
    // What ablating each head does to the chosen sentence.
    effects() {
      const { maps } = this.panes[this.second ? 1 : 0];
      if (!maps) return null;
      const rest = Array.from({ length: maps.count - 1 }, (_, j) => j + 1);
      const one = (l, h) => (maps.causal
        ? rest.reduce((sum, j) => sum + maps.without(l, h, j), 0) / rest.length : maps.without(l, h));
      const trained = Array.from({ length: maps.layers }, (_, l) => Array.from({ length: maps.heads }, (_, h) => one(l, h)));
      return { trained, note: maps.causal ? "The rise of the loss on this sentence with this head alone ablated; orange: better without."
        : "How far the embedding of this sentence moves with this head alone ablated: 1 − cosine." };
    }
    amount(measure, value) {
      if (measure.name) return `${measure.name} ${two(value)}`;
      if (![EFFECT, "without it"].includes(this.state.measure)) return `${this.state.measure} ${two(value)}`;
      return this.state.model === "smollm2" ? `loss ${signed(value, 3)} nats without it`
        : Number.isNaN(value) ? "being computed" : `embedding moved by ${value.toFixed(4)} without it`;
    }

    tokenOf(pane) {
      const place = Number(this.state.token), first = this.panes[0].maps;
      const same = pane.number && first ? sameWord(first.tokens, place, pane.maps.tokens) : -1;
      return pane.hover ?? pane.token ?? (same < 0 ? Math.min(place, pane.maps.count - 1) : same);
    }
    numbers(pane, i) {
      const { maps, at } = pane, show = this.state.show;
      const one = j => (show === "value" ? maps.brought(...at, i, j)
        : show === "without" && maps.causal ? maps.without(...at, j) : maps.weight(...at, i, j));
      return maps.tokens.map((_, j) => one(j));
    }

    draw(pane) {
      if (!pane.maps) return;
      const { maps, at } = pane, i = this.tokenOf(pane), show = this.state.show;
      const numbers = this.numbers(pane, i), isChange = show === "without" && maps.causal;
      if (pane.line.dataset.name !== pane.name) {
        pane.line.dataset.name = pane.name;
        pane.line.setAttribute("aria-label", "Tokens: choose the one that looks");
        pane.strip.classList.toggle("hx-many", maps.count > ONE_LINE || (this.narrow.matches && maps.count <= FEW_LINES));
        pane.strip.scrollLeft = 0;
        pane.line.replaceChildren(...maps.tokens.map((token, j) => el("button", {
          type: "button", class: `hx-token${joined(maps.tokens, j) ? " hx-joined" : ""}`, onclick: () => this.look(pane, j) },
          el("span", { class: "hx-word" }, readable(token)), el("small", {}), el("i"))));
      }
      [...pane.line.children].forEach((button, j) => {
        const x = numbers[j], seen = isChange || maps.sees(i, j);
        const share = isChange ? Math.min(1, Math.abs(x)) : x;
        button.style.setProperty("--hx-share", `${Math.round(100 * share)}%`);
        button.classList.toggle("hx-less", x < 0);
        button.classList.toggle("hx-unseen", !seen);
        button.setAttribute("aria-pressed", j === i && !isChange);
        button.tabIndex = j === i ? 0 : -1;
        button.classList.toggle("hx-nil", Math.abs(x) < 0.005);
        button.querySelector("small").textContent = !seen ? "" : isChange ? signed(x) : two(x);
      });
      this.weigh(pane);
      this.matrix(pane, i);
      this.arcs(pane, i, numbers);
    }

    weigh(pane) { pane.effect.textContent = (this.state.beside ? `${"AB"[pane.number]}: ` : "") + this.effect(pane).trim(); }
    // What ablating the head does, on speeches and on this sentence.
    effect(pane, isShort = false) {
      const [layer, head] = pane.at, { maps } = pane;
      const stored = this.index.models[this.state.model].measures["without it"].trained[layer][head];
      if (!maps.causal) {
        const moved = maps.without(layer, head);
        const all = [...Array(maps.layers * maps.heads).keys()].map(n => maps.without(Math.floor(n / maps.heads), n % maps.heads));
        const done = all.filter(x => !Number.isNaN(x));
        if (Number.isNaN(moved)) return ` Each head is being ablated: ${done.length} of ${all.length} …`;
        const rank = done.length < all.length ? "" : `, rank ${1 + all.filter(x => x > moved).length} of ${all.length}`;
        if (isShort) return ` Ablated, it moves the sentence’s embedding by ${moved.toFixed(4)}${rank}.`;
        return ` Without it, the embedding of this sentence moves by ${moved.toFixed(4)} (1 − cosine)${rank}; `
          + `on average over sentences of speeches by ${stored.toFixed(4)}.`;
      }
      const changes = maps.tokens.slice(1).map((_, j) => maps.without(layer, head, j + 1));
      const mean = changes.reduce((a, b) => a + b) / changes.length;
      return ` Without it, the loss of this sentence changes by ${signed(mean, 3)} nats per token; that of speeches by ${signed(stored, 3)}.`;
    }

    // The whole map: rows look at columns.
    matrix(pane, i) {
      if (this.small) return;
      const { maps, at } = pane, n = maps.count, isValue = this.state.show === "value";
      const key = `${pane.name} ${at} ${isValue}`;
      if (pane.drawn !== key) {
        pane.drawn = key;
        const margin = 28 + 7 * Math.max(...maps.tokens.map(token => readable(token).length));
        const side = this.narrow.matches || this.second ? 16 : Math.max(16, Math.min(26, Math.floor((540 - margin) / n)));
        const size = margin + n * side, middle = (size + margin) / 2, parts = [
          el("text", { x: middle, y: 12, "text-anchor": "middle", class: "hx-side" }, "looks at →"),
          el("text", { transform: `translate(12 ${middle}) rotate(-90)`, "text-anchor": "middle", class: "hx-side" }, "token")];
        for (let q = 0; q < n; q++) {
          parts.push(el("text", { x: margin - 5, y: margin + q * side + side / 2 + 4, "text-anchor": "end", "data-row": q },
            readable(maps.tokens[q])));
          parts.push(el("text", { transform: `translate(${margin + q * side + side / 2 + 4} ${margin - 5}) rotate(-90)` },
            readable(maps.tokens[q])));
          for (let k = 0; k < n; k++) if (maps.sees(q, k)) {
            const x = isValue ? maps.brought(...at, q, k) : maps.weight(...at, q, k);
            parts.push(el("rect", { x: margin + k * side, y: margin + q * side, width: side - 1, height: side - 1,
              style: `--hx-share:${Math.round(100 * x)}%`, "data-row": q }));
          }
        }
        const mark = el("rect", { class: "hx-mark", x: 17, width: size - 18, height: side + 1 });
        const svg = el("svg", { viewBox: `0 0 ${size + 1} ${size + 1}`, role: "img", width: size, height: size,
          "aria-label": "The whole map: each row a token that looks, each column one that is looked at. "
            + "The table below has its numbers.",
          onpointermove: e => e.pointerType === "mouse" && this.hover(pane, this.rowOf(e)),
          onclick: e => { const row = this.rowOf(e); if (row !== null) this.look(pane, row); } },
          ...parts, mark);
        pane.map.replaceChildren(svg);
        pane.mark = row => mark.setAttribute("y", margin + row * side - 1);
      }
      if (pane.mark) pane.mark(i);
    }
    rowOf(event) {
      const row = event.target.dataset?.row;
      return row === undefined ? null : Number(row);
    }

    // Arcs from the token that looks to those it looks at.
    arcs(pane, i = pane.maps && this.tokenOf(pane), numbers = pane.maps && this.numbers(pane, i)) {
      if (!pane.maps || pane.box.hidden) return;
      const box = pane.inner.getBoundingClientRect(), places = [...pane.line.children].map(button => {
        const at = button.getBoundingClientRect();
        return [at.left + at.width / 2 - box.left, at.top - box.top, at.height];
      });
      if (!places[i]) return;
      const [x, y, tall] = places[i];
      const paths = this.state.show === "without" && pane.maps.causal ? [] : numbers.map((value, j) => {
        if (value < 0.02 || !places[j]) return "";
        const [to, down] = places[j], rise = Math.min(64, 14 + Math.abs(to - x) / 4);
        let curve = `M${x} ${y}C${x} ${y - rise} ${to} ${down - rise} ${to} ${down}`;
        if (j === i) curve = `M${x - 6} ${y}c-8 -18 20 -18 12 0`;
        else if (down < y - 5) curve = `M${x} ${y}C${x} ${y - 24} ${to} ${down + tall + 24} ${to} ${down + tall}`;
        else if (down > y + 5) curve = `M${x} ${y + tall}C${x} ${y + tall + 24} ${to} ${down - 24} ${to} ${down}`;
        return el("path", { d: curve, "stroke-width": 1 + 7 * value, style: `opacity:${0.25 + 0.6 * value}` });
      });
      pane.arcs.replaceChildren(...paths.filter(path => path));
      // Where the line is too long for its box: the middle of the strongest look, unless it is in sight.
      const [from, to] = [x, places[numbers.indexOf(Math.max(...numbers))][0]].sort((a, b) => a - b);
      this.fade(pane);
      const room = pane.strip.clientWidth, seen = pane.strip.scrollLeft;
      if (pane.hover === null && room && (from < seen + 20 || to > seen + room - 20))
        pane.strip.scrollLeft = to - from < room - 36 ? (from + to - room) / 2 : x - room / 2;
    }

    // An edge is faded where the line goes on.
    fade({ strip }) {
      strip.classList.toggle("more-left", strip.scrollLeft > 2);
      strip.classList.toggle("more-right", strip.scrollLeft < strip.scrollWidth - strip.clientWidth - 2);
    }

    // In words: what a sighted reader sees.
    sentence(pane, i) {
      const { maps, at } = pane, show = this.state.show, numbers = this.numbers(pane, i);
      const name = `${this.state.beside ? `${"AB"[pane.number]}, layer` : "Layer"} ${at[0]}, head ${at[1]}`;
      const called = j => `“${readable(maps.tokens[j])}”`;
      if (show === "without" && maps.causal) {
        const order = numbers.map((x, j) => [Math.abs(x), x, j]).sort((a, b) => b[0] - a[0]).slice(0, 3);
        return `${name} ablated: the loss changes most at `
          + `${order.map(([, x, j]) => `${called(j)} ${signed(x)}`).join(", ")}.`;
      }
      const order = numbers.map((x, j) => [x, j]).filter(([, j]) => maps.sees(i, j)).sort((a, b) => b[0] - a[0]);
      const most = order.filter(([x], n) => n < 3 && (x >= 0.05 || !n));
      // What is written adds up to 1, each number being rounded.
      const rest = order.slice(most.length);
      const left = Math.max(0, most.reduce((sum, [x]) => sum - Number(two(x)), 1));
      const verb = show === "value" ? "takes from" : "looks at";
      const tail = rest.length && show !== "value"
        ? `; at the other ${rest.length === 1 ? "token" : `${rest.length} tokens`} ${two(left)}` : "";
      return `${name}: ${called(i)} ${verb} ${most.map(([x, j]) => `${called(j)} ${two(x)}`).join(", ")}${tail}.`
        + (show === "without" ? this.effect(pane, true) : "");
    }
    tell(pane) {
      const panes = this.panes.filter(one => one.maps && !one.box.hidden);
      const told = pane && pane.number && this.state.see ? [pane] : panes;
      this.say.textContent = told.map(one => this.sentence(one, this.tokenOf(one))).join(" ");
    }
    fill() {
      if (this.small || !this.table.open) return;
      const shown = this.panes.filter(pane => pane.maps && !pane.box.hidden);
      this.rows.replaceChildren(...shown.map(pane => {
        const { maps, at } = pane;
        const most = i => maps.tokens.map((_, j) => [maps.weight(...at, i, j), j])
          .sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([x], n) => x >= 0.05 || !n);
        const rows = maps.tokens.map((token, i) => el("tr", {}, el("th", { scope: "row" }, readable(token)),
          el("td", {}, most(i).map(([x, j]) => `${readable(maps.tokens[j])} ${two(x)}`).join(", ")),
          el("td", {}, most(i).map(([, j]) => two(maps.brought(...at, i, j))).join(", ")),
          ...(maps.causal ? [el("td", {}, i ? signed(maps.without(...at, i)) : "")] : [])));
        const head = ["token", "looks at (weight)", "weight × length of the value",
          ...(maps.causal ? ["its loss without the head"] : [])];
        return el("table", { class: "table" },
          el("caption", {}, `${NAMES[this.state.model]}, layer ${at[0]}, head ${at[1]}`),
          el("thead", {}, el("tr", {}, ...head.map(name => el("th", { scope: "col" }, name)))),
          el("tbody", {}, ...rows));
      }));
    }
  }

  // An explorer starts when it comes near, or at once where the address asks for it.
  const start = root => load("index").then(index => { root.explorer = new Explorer(root, index); })
    .catch(() => root.classList.add("hx-failed"));
  const begin = () => {
    document.addEventListener("click", event => {
      const link = event.target.closest("a[data-explorer]");
      if (!link) return;
      event.preventDefault();
      const root = document.getElementById("explorer");
      history.replaceState({ explorer: root.explorer?.toAddress() ?? "" }, "");
      location.hash = `explorer:${link.dataset.explorer}`;
      if (!root.explorer) start(root);
    });
    const near = new IntersectionObserver(entries => entries.filter(e => e.isIntersecting).forEach(e => {
      near.unobserve(e.target);
      start(e.target);
    }), { rootMargin: "600px" });
    for (const root of document.querySelectorAll(".hx")) {
      if (location.hash.startsWith(`#${root.id}:`)) start(root);
      else near.observe(root);
    }
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
