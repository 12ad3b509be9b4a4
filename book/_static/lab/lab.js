// What the small laboratories share: controls with labels, numbers, drawings, and a voice.
// A laboratory calls lab.define(name, build); build(here, data) makes its controls and views once,
// and gives here.draw a function that is called at the start and after every change.
window.lab = (() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const QUIET = 600; // ms without a change, after which a screen reader is told

  const filled = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes))
      if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
    node.append(...children);
    return node;
  };
  const make = (tag, attributes = {}, ...children) =>
    filled(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) =>
    filled(document.createElementNS(SVG, tag), attributes, children);
  const fixed = (x, digits) =>
    (Object.is(x, -Infinity) ? "−∞" : x.toFixed(digits).replace(/^-(?=0(\.0*)?$)/, "").replace("-", "−"));

  class Place {
    constructor(box, name) {
      this.name = name;
      this.live = box.querySelector(".lab-live");
      this.controls = make("div", { class: "lab-controls" });
      this.view = make("div", { class: "lab-view" });
      this.sentence = make("p", { class: "lab-says", id: `lab-${name}-says` });
      this.voice = make("p", { class: "lab-voice", role: "status" });
      this.live.replaceChildren(this.controls, this.view, this.sentence, this.voice);
      this.numbers = {};
      this.inputs = [];
      this.waiting = this.keeping = 0;
    }

    // A function that redraws all; changes within one frame are drawn once.
    draw(all) {
      this.redraw = () => {
        this.frame ||= requestAnimationFrame(() => { this.frame = 0; all(); });
      };
      all();
    }

    changed() {
      this.spoken = true;
      if (this.redraw) this.redraw();
      clearTimeout(this.keeping);
      this.keeping = setTimeout(() => this.remember(), QUIET);
    }

    field(name, label, input, ...more) {
      input.id = `lab-${this.name}-${name}`;
      input.autocomplete = "off";
      this.inputs.push(input);
      this.controls.append(make("div", { class: "lab-field" },
        make("label", { for: input.id }, label), ...more, input));
    }

    // A slider. show: its value -> what is read of it; read: where the slider is -> its value.
    slider(name, label, { min, max, step = 1, value, read = x => x, show = String }) {
      const input = make("input", { type: "range", min, max, step, value });
      const shown = make("output", { "aria-live": "off", "data-number": name });
      this.field(name, label, input, shown);
      shown.htmlFor = input.id;
      const tell = () => {
        const now = read(input.valueAsNumber);
        shown.textContent = show(now);
        shown.dataset.exact = now;
        input.setAttribute("aria-valuetext", show(now));
      };
      input.addEventListener("input", () => { tell(); this.changed(); });
      tell();
      return {
        input,
        get value() { return read(input.valueAsNumber); },
        set value(now) { input.value = now; tell(); },
        set max(now) { input.max = now; tell(); },
      };
    }

    // A choice of one; options: [value, what is read].
    choice(name, label, options, value) {
      const select = make("select", {}, ...options.map(([of, text]) =>
        make("option", { value: of, selected: String(of) === String(value) }, text)));
      this.field(name, label, select);
      select.addEventListener("input", () => this.changed());
      return { input: select, get value() { return select.value; } };
    }

    // A box to tick.
    tick(name, label, checked = false) {
      const input = make("input", { type: "checkbox", id: `lab-${this.name}-${name}`, autocomplete: "off", checked });
      this.inputs.push(input);
      this.controls.append(make("label", { class: "lab-tick" }, input, ` ${label}`));
      input.addEventListener("input", () => this.changed());
      return { input, get value() { return input.checked; } };
    }

    button(label, press) {
      const button = make("button", { type: "button", class: "lab-button" }, label);
      button.addEventListener("click", () => { press(); this.changed(); });
      this.controls.append(button);
      return button;
    }

    // The address holds what was moved, as #lab-NAME:control=value; a button leads back.
    keep() {
      const value = input => (input.type === "checkbox" ? String(input.checked) : input.value);
      const first = new Map(this.inputs.map(input => [input, value(input)]));
      const named = input => input.id.slice(`lab-${this.name}-`.length);
      const mark = `#lab-${this.name}:`;
      const set = values => [0, 1].forEach(() => this.inputs.forEach(input => { // one can set the range of others
        const now = values.get(named(input)) ?? first.get(input);
        if (input.type === "checkbox") input.checked = now === "true";
        else input.value = now;
        input.dispatchEvent(new Event("input", { bubbles: true }));
      }));
      this.remember = () => {
        const moved = this.inputs.filter(input => value(input) !== first.get(input));
        const state = new URLSearchParams(moved.map(input => [named(input), value(input)]));
        if (moved.length) history.replaceState(null, "", mark + state);
        else if (location.hash.startsWith(mark)) history.replaceState(null, "", location.pathname + location.search);
      };
      const restore = () => {
        if (!location.hash.startsWith(mark)) return;
        set(new URLSearchParams(location.hash.slice(mark.length)));
        this.spoken = false;
        if (performance.getEntriesByType("navigation")[0]?.type !== "reload") this.live.closest(".lab").scrollIntoView();
      };
      this.button("Reset", () => set(new Map()));
      restore();
      window.addEventListener("hashchange", restore);
    }

    // A list of named numbers; number() fills it.
    list(...entries) {
      const list = make("dl", { class: "lab-numbers" });
      for (const [name, label] of entries)
        list.append(make("div", {}, make("dt", {}, label), this.cell(name, "dd")));
      this.view.append(list);
    }

    // An element that holds the number of that name.
    cell(name, tag = "span") {
      this.numbers[name] = make(tag, { "data-number": name });
      return this.numbers[name];
    }

    // What the setting makes impossible.
    strike(isVoid, ...names) {
      for (const name of names) this.numbers[name].classList.toggle("lab-struck", isVoid);
    }

    number(name, exact, shown) {
      this.numbers[name].textContent = shown;
      this.numbers[name].dataset.exact = exact;
    }

    // What a reader sees, in words; spoken when the controls have come to rest.
    say(text) {
      this.sentence.textContent = text;
      clearTimeout(this.waiting);
      if (this.spoken) this.waiting = setTimeout(() => { this.voice.textContent = text; }, QUIET);
    }
  }

  // A script beside this one, which calls give with what it holds.
  const base = document.currentScript.src.replace(/[^/]*$/, ""), waiting = {};
  const fetch = (name, path) => new Promise((resolve, reject) => {
    waiting[name] = resolve;
    const script = make("script", { src: base + path });
    script.onload = () => script.remove();
    script.onerror = () => { script.remove(); reject(new Error(path)); };
    document.head.append(script);
  });
  const give = (name, data) => { waiting[name](data); delete waiting[name]; };

  // Much data comes once the page has been seen.
  const define = (name, build) => {
    const boxes = [...document.querySelectorAll(`.lab[data-lab="${name}"]`)];
    const texts = boxes.map(box => box.querySelector(".lab-data")?.textContent);
    if (texts.every(text => text)) return start(boxes, name, build, () => JSON.parse(texts[0]));
    requestAnimationFrame(() => setTimeout(async () => {
      const data = await fetch(name, `${name}-data.js`);
      start(boxes, name, build, () => data);
    }));
  };

  const start = (boxes, name, build, data) => {
    for (const box of boxes) {
      try {
        const here = new Place(box, name);
        build(here, data());
        here.keep();
        box.classList.add("lab-ready");
      } catch (error) {
        box.classList.add("lab-failed"); // the table is shown in its place
        throw error;
      }
    }
  };

  return { define, fetch, give, make, draw, fixed };
})();
