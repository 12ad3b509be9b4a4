// An array of positions × features, split into heads in the right way and by one reshape.
lab.define("wrong-reshape", (here, { positions, heads, width }) => {
  const { make } = lab;
  const range = { min: 1, show: String };
  const T = here.slider("positions", "Positions", { ...range, max: 6, value: positions });
  const N = here.slider("heads", "Heads", { ...range, max: 3, value: heads });
  const H = here.slider("width", "Width of a head", { ...range, max: 3, value: width });
  const way = here.choice("way", "How it is split",
    [["wrong", "one reshape"], ["right", "reshape, then transpose"]], "wrong");
  const board = make("div", { class: "lab-board" });
  here.view.append(board);
  here.list(["in-place", "entries that are where they belong"], ["held", "positions in the chosen head"]);

  let chosen = [0, 1, 0]; // head, row, place
  const table = (caption, rows, columns, cell) => make("table", { class: "lab-grid" },
    make("caption", {}, caption),
    make("tbody", {}, ...Array.from({ length: rows }, (_, i) =>
      make("tr", {}, ...Array.from({ length: columns }, (_, n) => cell(i, n))))));

  const all = focus => {
    const [t, n, h] = [T.value, N.value, H.value];
    chosen = [Math.min(chosen[0], n - 1), Math.min(chosen[1], t - 1), Math.min(chosen[2], h - 1)];
    // Where entry a of row i of head number `head` comes from: its place in reading order.
    const source = (head, i, a) =>
      (way.value === "right" ? i * n * h + head * h + a : (head * t + i) * h + a);
    const [head, row, place] = chosen;
    const from = source(head, row, place);
    const face = at => ({ position: Math.floor(at / (n * h)), feature: at % (n * h) });
    const paint = (tag, at, attributes) => {
      const { position, feature } = face(at);
      const owner = Math.floor(feature / h);
      return make("td", {}, make(tag, { ...attributes, class: `lab-entry lab-head-${owner}` },
        `${position}${feature}`));
    };
    const grid = table("the array", t, n * h, (i, f) => {
      const at = i * n * h + f;
      const cell = paint("span", at, {});
      cell.firstChild.classList.toggle("lab-source", at === from);
      return cell;
    });
    const parts = Array.from({ length: n }, (_, k) => table(`head ${k}`, t, h, (i, a) => {
      const at = source(k, i, a), { position, feature } = face(at);
      const now = k === head && i === row && a === place;
      const cell = paint("button", at, {
        type: "button", tabindex: now ? 0 : -1, "aria-pressed": String(now), "data-at": `${k} ${i} ${a}`,
        "aria-label": `${position}${feature}, row ${i} of head ${k}: position ${position}, feature ${feature}`,
      });
      return cell;
    }));
    board.replaceChildren(grid, make("div", {
      class: "lab-heads", role: "group", "aria-label": "The heads; arrow keys choose an entry",
    }, ...parts));
    if (focus) board.querySelector('[aria-pressed="true"]').focus();

    let inPlace = 0;
    const held = new Set();
    for (let k = 0; k < n; k++) for (let i = 0; i < t; i++) for (let a = 0; a < h; a++) {
      const at = source(k, i, a);
      inPlace += at === i * n * h + k * h + a;
      if (k === head) held.add(face(at).position);
    }
    const total = t * n * h, list = [...held].sort((a, b) => a - b).join(", ");
    here.number("in-place", inPlace, `${inPlace} of ${total}`);
    here.number("held", list, `${list} (of 0 to ${t - 1})`);
    const { position, feature } = face(from);
    const truth = `position ${position} and head ${Math.floor(feature / h)}`;
    const right = from === row * n * h + head * h + place;
    here.say(`Row ${row} of head ${head} holds ${position}${feature} at place ${place}: an entry of ${truth}` +
      (right ? ". That is where it belongs." : `, and so in the wrong place.`) +
      (held.size < t ? ` Attention in head ${head} reaches ${held.size} of ${t} positions.` : ""));
  };

  board.addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    chosen = button.dataset.at.split(" ").map(Number);
    here.spoken = true;
    all(true);
  });
  board.addEventListener("keydown", event => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || !event.target.closest("button")) return;
    event.preventDefault();
    const [n, h, t] = [N.value, H.value, T.value];
    const column = Math.min(Math.max(chosen[0] * h + chosen[2] + step[1], 0), n * h - 1);
    chosen = [Math.floor(column / h), Math.min(Math.max(chosen[1] + step[0], 0), t - 1), column % h];
    all(true); // the name of the button under the focus is read out
  });
  here.draw(() => all(false));
});
