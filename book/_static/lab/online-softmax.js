// One row of scores, read in blocks: the largest score m and the sums ℓ and o that are kept.
lab.define("online-softmax", (here, { powers, values, block }) => {
  const scores = powers.map(Math.log);
  const { make, fixed } = lab;
  const count = scores.length;
  const order = here.choice("order", "The scores come",
    [["given", "as given"], ["rising", "rising"], ["falling", "falling"]], "given");
  const width = here.slider("width", "Keys in a block", { min: 1, max: count, value: block });
  const hidden = here.slider("hidden", "First keys hidden", { min: 0, max: count, value: 0 });
  const read = here.slider("read", "Blocks read", { min: 0, max: count / block, value: 2 });
  const next = here.button("Read a block", () => { read.value = read.value + 1; });
  const wrong = here.tick("wrong", "don't rescale o");

  const bars = make("ol", { class: "lab-bars", "aria-label": "The keys" });
  const columns = scores.map((_, k) => {
    const bar = make("span", { class: "lab-column" }), text = make("span", { class: "lab-under" });
    bars.append(make("li", {}, make("span", { class: "lab-shaft" }, bar), text));
    return { bar, text };
  });
  const body = make("tbody");
  here.view.append(bars, make("div", { class: "lab-scroll" }, make("table", { class: "lab-table" },
    make("thead", {}, make("tr", {}, ...["block", "m", "factor", "ℓ", "o", "o / ℓ"].map(text =>
      make("th", { scope: "col" }, text)))), body)));
  here.list(["output", "output after these blocks"], ["whole", "of the same keys at once"]);

  here.draw(() => {
    const keys = scores.map((score, k) => ({ score, value: values[k] }));
    if (order.value !== "given")
      keys.sort((a, b) => (order.value === "rising" ? a.score - b.score : b.score - a.score));
    keys.forEach((k, at) => { if (at < hidden.value) k.score = -Infinity; });
    const blocks = Math.ceil(count / width.value);
    read.max = blocks;
    next.disabled = read.value >= blocks;

    let [m, l, o, rises] = [-Infinity, 0, 0, 0];
    const rows = [];
    for (let n = 0; n < read.value; n++) {
      const part = keys.slice(n * width.value, (n + 1) * width.value);
      const larger = Math.max(m, ...part.map(k => k.score));
      const shift = larger === -Infinity ? 0 : larger; // −∞ less −∞ is no number
      const fade = Math.exp(m - shift), powers = part.map(k => Math.exp(k.score - shift));
      if (l > 0 && larger > m) rises += 1;
      l = fade * l + powers.reduce((a, b) => a + b, 0);
      o = (wrong.value ? 1 : fade) * o + powers.reduce((all, p, k) => all + p * part[k].value, 0);
      m = larger;
      rows.push([n + 1, m, fade, l, o, l ? o / l : 0]);
    }
    body.replaceChildren(...rows.map(row => make("tr", { "data-block": row[0] }, ...row.map((x, c) =>
      make(c ? "td" : "th", c ? { "data-exact": x } : { scope: "row" }, c ? fixed(x, 3) : String(x))))));

    const seen = keys.slice(0, read.value * width.value);
    const total = seen.reduce((all, k) => all + Math.exp(k.score), 0);
    const whole = total ? seen.reduce((all, k) => all + Math.exp(k.score) * k.value, 0) / total : 0;
    const output = l ? o / l : 0;
    columns.forEach(({ bar, text }, at) => {
      const power = keys[at].score === -Infinity ? 0 : Math.exp(keys[at].score - m);
      const known = at < seen.length;
      bar.style.height = known ? `${100 * power}%` : "0";
      bar.parentNode.classList.toggle("lab-unread", !known);
      bar.parentNode.parentNode.classList.toggle("lab-first", at % width.value === 0);
      text.textContent = !known ? "?" : keys[at].score === -Infinity ? "hidden" : fixed(power, 2);
    });
    here.number("output", output, fixed(output, 3));
    here.number("whole", whole, fixed(whole, 3));
    const off = Math.abs(output - whole) > 5e-4;
    here.say(`${read.value} of ${blocks} blocks read. ` + (l === 0 ? "No key was seen: both sums are 0."
      : `The maximum has risen ${rises === 1 ? "once" : `${rises} times`} after the first keys, and the output is ` +
        `${fixed(output, 3)}` + (off ? `, which is wrong: at once it is ${fixed(whole, 3)}.`
        : wrong.value ? ", which is right in spite of the mistake." : ", as at once.")));
  });
});
