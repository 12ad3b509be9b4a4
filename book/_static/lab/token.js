// One token's way through a layer of MiniLM, step by step: the formula, the line of code, the numbers.
// Queries, keys, values, W_O and a few features of the input are the package's; the rest is computed. They
// come as whole numbers of three bytes and their unit, the lowest bytes of all first.
lab.define("token", (here, { tokens, steps, shown, token, head, layer, ...packed }) => {
  const { make, draw, fixed } = lab;
  const read = ([unit, text]) => {
    const from = Uint8Array.from(atob(text), c => c.charCodeAt(0)), n = from.length / 3;
    return Float32Array.from({ length: n }, (_, i) => unit * ((from[i] << 8 | from[n + i] << 16 | from[2 * n + i] << 24) >> 8));
  };
  const [x, q, k, v, wO, bO] = ["x", "q", "k", "v", "w_o", "b_o"].map(name => read(packed[name]));
  const T = tokens.length, F = shown, D = q.length / T, H = 32, N = D / H;
  const upTo = n => Array.from({ length: n }, (_, i) => i);
  const row = (all, h, i) => all.subarray((h * T + i) * H, (h * T + i + 1) * H);
  const sum = list => list.reduce((a, b) => a + b, 0);
  const top = list => list.reduce((best, y, i) => (y > list[best] ? i : best), 0);
  const largest = list => Math.max(...Array.from(list, Math.abs));

  // Controls
  const count = steps.length;
  const back = here.button("Back", () => go(step.value - 1));
  const step = here.slider("step", "Step", {
    min: 1, max: count, value: 1, show: n => `${n} of ${count}: ${steps[n - 1][0]}` });
  const next = here.button("Next", () => go(step.value % count + 1));
  next.classList.add("tk-next");
  step.input.before(back);
  step.input.after(next);
  const followed = here.choice("token", "Token", tokens.map((text, i) => [i, text]), token);
  const chosen = here.choice("head", "Head", upTo(N).map(h => [h, `L${layer}H${h}`]), head);
  const causal = here.tick("causal", "causal mask");
  const go = n => { step.value = Math.min(Math.max(n, 1), count); here.changed(); };

  // The sheet: each step's line of the formula beside its line of code
  const formula = text => text.replace(/ᵀ/g, "<sup>⊤</sup>")
    .replace(/([_^])(\w+)/g, (_, how, what) => `<su${how === "_" ? "b" : "p"}>${what}</su${how === "_" ? "b" : "p"}>`)
    .replace(/\b[A-Zb]\b/g, letter => `<i class="tk-${letter}">${letter}</i>`);
  const code = text => text.replace(/\b[qkvo]\b/g, name => `<b class="tk-${name.toUpperCase()}">${name}</b>`);
  const lines = steps.map(([name, symbols, ...python], n) => {
    const button = make("button", { type: "button", tabindex: -1, title: `${n + 1}. ${name}` });
    symbols.split("; ").forEach((text, m) => {
      const pair = [make("span", { class: "tk-formula" }), make("code")];
      pair[0].innerHTML = formula(text);
      pair[1].innerHTML = code(python[m]);
      button.append(...pair);
    });
    button.addEventListener("click", () => go(n + 1));
    return make("li", {}, button);
  });
  const sheet = make("ol", { class: "tk-sheet" }, ...lines);

  // The pictures: small vectors as bars, up and down; numbers in tables
  const strip = kind => {
    const bars = draw("path", { class: "tk-bars" }), mark = draw("rect", { class: "tk-mark", width: 1, height: 20 });
    const pale = draw("path", { class: "tk-bars tk-pale" });
    const svg = draw("svg", { viewBox: `0 0 ${H} 20`, preserveAspectRatio: "none", class: `tk-strip tk-${kind}`, "aria-hidden": "true" },
      mark, draw("path", { class: "tk-axis", d: `M0 10H${H}` }), pale, bars);
    const shape = (list, most) => Array.from(list, (y, i) => `M${i + 0.12} 10v${(-9.5 * y / most).toFixed(2)}h.76V10z`).join("");
    return { svg, set(list, most, { at = null, whole = null } = {}) {
      bars.setAttribute("d", shape(list, most));
      pale.setAttribute("d", whole ? shape(whole, most) : "");
      mark.setAttribute("x", at ?? -9);
    } };
  };
  const th = (scope, ...inside) => make("th", { scope }, ...inside);
  const number = (name, y) => here.number(name, y, fixed(y, 2));
  const table = (name, headings, rows, caption) => make("table", { class: `tk-table tk-${name}` },
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...headings.map(([text, span = 1, kind = ""]) => {
      const heading = th("col", text);
      if (span > 1) heading.colSpan = span;
      if (kind) heading.className = kind;
      return heading;
    }))), make("tbody", {}, ...rows));
  const named = text => th("row", text);
  const heat = (name, y, most) => {
    here.numbers[name].classList.toggle("tk-minus", y < 0);
    here.numbers[name].style.setProperty("--heat", `${Math.round(45 * Math.min(Math.abs(y) / most, 1))}%`);
    number(name, y);
  };

  const all = upTo(T), heads = upTo(N), few = upTo(F);
  const inputs = all.map(j => make("tr", {}, named(tokens[j]), ...few.map(f => here.cell(`in-${j}-${f}`, "td"))));
  const strips = all.map(() => ({ q: strip("Q"), k: strip("K"), v: strip("V"), product: strip("S"), average: strip("V") }));
  const projected = all.map(j => make("tr", {}, named(tokens[j]),
    ...["q", "k", "v"].map(kind => make("td", {}, strips[j][kind].svg))));
  const spelled = ["q", "k", "v"].map(kind => make("tr", { class: `tk-spelled tk-${kind.toUpperCase()}` }, th("row", kind.toUpperCase()),
    make("td", { colspan: 3 }, ...few.map(f => here.cell(`${kind}-${f}`)), "…")));
  const bars = all.map(() => make("span", { class: "lab-bar" }));
  const scored = all.map(j => make("tr", {}, named(tokens[j]),
    make("td", { class: "tk-only-3" }, strips[j].product.svg),
    ...["s", "z", "m", "a"].map((kind, m) => {
      const cell = here.cell(`${kind}-${j}`, "td");
      cell.className = `tk-from-${m + 3}`;
      return cell;
    }),
    make("td", {}, make("div", { class: "lab-gauge" }, bars[j]))));
  const result = strip("O");
  const averaged = all.map(j => make("tr", {}, named(tokens[j]), here.cell(`weight-${j}`, "td"),
    make("td", {}, strips[j].average.svg), here.cell(`part-${j}`, "td")));
  averaged.push(make("tr", { class: "tk-sum" }, named("sum"), here.cell("weights", "td"), make("td", {}, result.svg), here.cell("output", "td")));
  const outputs = heads.map(() => strip("O")), squares = heads.map(() => all.map(() => make("i")));
  const sided = heads.map(h => make("tr", {}, named(`H${h}`), make("td", {}, make("span", { class: "tk-squares" }, ...squares[h])),
    make("td", {}, make("span", { class: "tk-best" }), " ", here.cell(`top-${h}`)), make("td", {}, outputs[h].svg)));
  const written = [...heads.map(h => `H${h}`), "bias", "Y"].map((name, h) => make("tr", { class: h > N ? "tk-sum" : null },
    named(name), ...few.map(f => here.cell(`write-${h}-${f}`, "td"))));
  const added = few.map(f => ({ before: make("span", { class: "lab-bar tk-before" }), change: make("span", { class: "lab-bar tk-change" }) }));
  const residual = few.map(f => make("tr", {}, named(String(f)), ...["x", "y", "r"].map(kind => here.cell(`${kind}-${f}`, "td")),
    make("td", {}, make("div", { class: "lab-gauge tk-zero" }, added[f].before, added[f].change))));

  const spelt = make("span");
  const features = `features 0 to ${F - 1} of ${D}`;
  const pictures = [
    table("in", [["token"], [features, F]], inputs, "The vector of each token"),
    table("qkv", [["token"], ["Q", 1, "tk-Q"], ["K", 1, "tk-K"], ["V", 1, "tk-V"]], [...projected, ...spelled], "Queries, keys and values"),
    table("scores", [["key"], ["query × key", 1, "tk-only-3"], ["S", 1, "tk-from-3"], ["S / √H", 1, "tk-from-4"], ["S + M", 1, "tk-from-5"], ["A", 1, "tk-from-6"], [""]], scored, "Scores and weights"),
    table("average", [["token"], ["A"], ["A × V", 1, "tk-V"], [spelt]], averaged, "The weighted average of the values"),
    table("heads", [["head"], ["weights"], ["largest"], ["output", 1, "tk-O"]], sided, "The heads side by side"),
    table("write", [["head"], [features, F]], written, "What each head adds to the output"),
    table("residual", [["feature"], ["X"], ["Y", 1, "tk-O"], ["X + Y"], [""]], residual, "The vector, what the layer adds, and their sum"),
  ];
  const pictureOf = [0, 1, 2, 2, 2, 2, 3, 4, 5, 6];
  const picture = make("div", { class: "tk-picture" }, ...pictures);
  here.view.append(sheet, make("div", { class: "tk-panel" }, here.sentence, picture));

  // Arrow keys and swipes
  here.live.addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || event.target.closest("input, select")) return;
    event.preventDefault();
    go(step.value + move);
  });
  let from = null;
  picture.addEventListener("touchstart", ({ changedTouches: [at] }) => { from = at; }, { passive: true });
  picture.addEventListener("touchend", ({ changedTouches: [at] }) => {
    const [across, down] = [at.clientX - from.clientX, at.clientY - from.clientY];
    if (Math.abs(across) > 40 && Math.abs(across) > 2 * Math.abs(down)) go(step.value - Math.sign(across));
  });

  here.draw(() => {
    const n = step.value, i = Number(followed.value), h = Number(chosen.value);
    const name = `“${tokens[i]}”`, isHidden = j => causal.value && j > i;
    const rowsOf = g => { // what head g makes of the followed token
      const scores = all.map(j => sum(Array.from(row(q, g, i), (y, a) => y * row(k, g, j)[a])));
      const scaled = scores.map(s => s / Math.sqrt(H)), masked = scaled.map((s, j) => (isHidden(j) ? -Infinity : s));
      const powers = masked.map(s => Math.exp(s - Math.max(...masked))), weights = powers.map(p => p / sum(powers));
      const output = upTo(H).map(c => sum(weights.map((a, j) => a * row(v, g, j)[c])));
      return { scores, scaled, masked, weights, output };
    };
    const every = heads.map(rowsOf), { scores, scaled, masked, weights, output } = every[h];
    here.live.dataset.step = n;
    lines.forEach((line, m) => {
      if (m === n - 1) line.firstChild.setAttribute("aria-current", "step");
      else line.firstChild.removeAttribute("aria-current");
      line.classList.toggle("tk-done", m < n - 1);
    });
    pictures.forEach((one, m) => { one.hidden = m !== pictureOf[n - 1]; });
    back.setAttribute("aria-disabled", n === 1);
    next.textContent = n === count ? "Again" : "Next";
    for (const rows of [inputs, projected]) rows.forEach((line, j) => line.classList.toggle("tk-mine", j === i));
    const best = top(weights), feature = top(output.map(Math.abs));
    for (const rows of [scored, averaged]) rows.forEach((line, j) => {
      line.classList.toggle("tk-best-row", n > 2 && j === best);
      line.classList.toggle("tk-hidden", n > 4 && j < T && isHidden(j));
    });
    for (const rows of [sided, written]) rows.forEach((line, g) => line.classList.toggle("tk-mine", g === h));

    const most = list => largest(all.flatMap(j => [...row(list, h, j)]));
    const mostX = largest(x), mostQ = most(q), mostK = most(k), mostV = most(v);
    const products = all.map(j => row(q, h, i).map((y, a) => y * row(k, h, j)[a])), mostP = largest(products.flatMap(p => [...p]));
    all.forEach(j => {
      few.forEach(f => heat(`in-${j}-${f}`, x[j * F + f], mostX));
      strips[j].q.set(row(q, h, j), mostQ);
      strips[j].k.set(row(k, h, j), mostK);
      strips[j].v.set(row(v, h, j), mostV);
      strips[j].product.set(products[j], mostP);
      strips[j].average.set(row(v, h, j).map(y => y * weights[j]), mostV, { at: feature, whole: row(v, h, j) });
      number(`s-${j}`, scores[j]);
      number(`z-${j}`, scaled[j]);
      number(`m-${j}`, masked[j]);
      number(`a-${j}`, weights[j]);
      number(`weight-${j}`, weights[j]);
      number(`part-${j}`, weights[j] * row(v, h, j)[feature]);
    });
    const [list, least] = n === 3 ? [scores, Math.min(...scores, 0)] : n < 6 ? [n === 5 ? masked : scaled, Math.min(...scaled, 0)] : [weights, 0];
    const range = Math.max(...list, 0) - least || 1;
    all.forEach(j => {
      const y = Number.isFinite(list[j]) ? list[j] : 0;
      bars[j].style.left = `${100 * (Math.min(y, 0) - least) / range}%`;
      bars[j].style.width = `${100 * Math.abs(y) / range}%`;
    });
    few.forEach(f => {
      ["q", "k", "v"].forEach((kind, m) => number(`${kind}-${f}`, row([q, k, v][m], h, i)[f]));
    });
    result.set(output, mostV, { at: feature });
    spelt.textContent = `feature ${feature}`;
    number("weights", sum(weights));
    number("output", output[feature]);
    const mostO = largest(every.flatMap(one => one.output));
    heads.forEach(g => {
      const to = top(every[g].weights);
      squares[g].forEach((square, j) => square.style.setProperty("--heat", `${Math.round(100 * every[g].weights[j])}%`));
      sided[g].querySelector(".tk-best").textContent = tokens[to];
      number(`top-${g}`, every[g].weights[to]);
      outputs[g].set(every[g].output, mostO);
    });
    const wrote = heads.map(g => few.map(f => sum(every[g].output.map((y, c) => y * wO[(g * H + c) * F + f]))));
    wrote.push([...bO], few.map(f => sum(wrote.map(of => of[f])) + bO[f]));
    const mostW = largest(wrote.slice(0, N).flat());
    wrote.forEach((of, g) => of.forEach((y, f) => heat(`write-${g}-${f}`, y, g < N ? mostW : Infinity)));
    const y = wrote[N + 1], before = few.map(f => x[i * F + f]), mostR = largest([...before, ...before.map((b, f) => b + y[f])]);
    few.forEach(f => {
      number(`x-${f}`, before[f]);
      number(`y-${f}`, y[f]);
      number(`r-${f}`, before[f] + y[f]);
      [[added[f].before, 0, before[f]], [added[f].change, before[f], before[f] + y[f]]].forEach(([bar, start, end]) => {
        bar.style.left = `${50 + 50 * Math.min(start, end) / mostR}%`;
        bar.style.width = `${50 * Math.abs(end - start) / mostR}%`;
      });
    });

    here.say([
      `Each token is a vector of ${D} numbers: its embedding, changed by layers 0 to ${layer - 1}. All numbers are the model's own.`,
      `Three matrices turn each vector into a query, a key and a value of ${H} numbers, drawn as bars. We follow the query of ${name}.`,
      `The query of ${name} times each key, entry by entry (the bars), and added up. The best match is “${tokens[top(scores)]}” with ${fixed(Math.max(...scores), 2)}.`,
      `The longer the vectors, the larger such sums. Divided by √${H} = ${fixed(Math.sqrt(H), 2)}, they have a size at which the softmax can learn.`,
      !causal.value ? "MiniLM reads in both directions, so M is 0. A model that writes text may not look ahead: tick “causal mask”."
        : i === T - 1 ? `Nothing comes after ${name}, so a causal mask hides nothing from it.`
          : `What comes after ${name} has the score −∞ now. MiniLM wasn't trained with a causal mask; every model that writes text is.`,
      `Exponentials, divided by their sum: ${T} weights that add up to 1. The largest, ${fixed(weights[best], 2)}, goes to “${tokens[best]}”.`,
      `Each value (pale) times its weight (dark). The sum is the head's output; one of its ${H} numbers is on the right.`,
      `All ${N} heads do the same, with matrices of their own. Side by side, their outputs are ${N} × ${H} = ${D} numbers.`,
      `Each head adds to all ${D} features, through its own rows of the last matrix. So the output Y is a sum over the heads.`,
      `Y is added to the vector of ${name}, which now carries what the heads found. A layer norm and the feed-forward part follow.`,
    ][n - 1]);
  });
});
