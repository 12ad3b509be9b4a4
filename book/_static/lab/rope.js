// One pair of features of a query and of a key, turned by their positions.
lab.define("rope", (here, { theta, head_dim: width, query, key }) => {
  const { make, draw, fixed } = lab;
  const LAST = 63;
  const i = here.slider("query", "Query at position", { min: 0, max: LAST, value: 9 });
  const j = here.slider("key", "Key at position", { min: 0, max: LAST, value: 3 });
  const on = here.slider("on", "Both moved by", { min: 0, max: LAST, value: 0 });
  const pair = here.slider("pair", "Pair of features", { min: 0, max: width / 2 - 1, value: 3 });

  const circle = draw("svg", { viewBox: "-2.1 -1.6 4.2 3.2", class: "lab-circle", role: "img" });
  const curve = draw("svg", { class: "lab-curve", role: "img", height: 200 });
  for (const picture of [circle, curve]) picture.setAttribute("aria-labelledby", here.sentence.id);
  here.view.append(make("div", { class: "lab-pictures" }, circle, curve));
  here.list(["places", "query and key now at positions"], ["distance", "distance between them"],
    ["score", "product of the pair"],
    ["query-angle", "query turned by (radians)"], ["key-angle", "key turned by (radians)"],
    ["wavelength", "repeats after (positions)"]);

  const turned = ([x, y], angle) =>
    [x * Math.cos(angle) - y * Math.sin(angle), x * Math.sin(angle) + y * Math.cos(angle)];
  const product = (speed, from, to) => {
    const [q, k] = [turned(query, from * speed), turned(key, to * speed)];
    return q[0] * k[0] + q[1] * k[1];
  };
  // An arrow from the middle; its name stands a little aside, so that two do not cover each other.
  const arrow = ([x, y], kind, name, aside) => {
    const length = Math.hypot(x, y), [a, b] = [x / length, -y / length];
    const tip = [[0, 0], [-0.13, 0.06], [-0.13, -0.06]].map(([u, v]) =>
      `${x + a * u - b * v},${-y + b * u + a * v}`);
    const [u, v] = turned([a, -b], aside).map(part => part * (length + 0.18));
    const anchor = u > 0.3 ? "start" : u < -0.3 ? "end" : "middle";
    return [draw("line", { x1: 0, y1: 0, x2: x - 0.1 * a, y2: -y - 0.1 * b, class: `lab-line ${kind}` }),
      draw("polygon", { points: tip.join(" "), class: `lab-fill ${kind}` }),
      draw("text", { x: u, y: 0.08 - v, class: `lab-fill ${kind}`, "text-anchor": anchor, "font-size": 0.24 }, name)];
  };

  const all = () => {
    const speed = theta ** (-2 * pair.value / width);
    const [from, to] = [i.value + on.value, j.value + on.value];
    const [a, b] = [from * speed, to * speed];
    const score = product(speed, from, to), distance = from - to;
    const [q, k] = [turned(query, a), turned(key, b)];
    const apart = Math.atan2(k[0] * q[1] - k[1] * q[0], k[0] * q[0] + k[1] * q[1]);
    const aside = Math.sign(apart) * Math.max(0, 0.35 - Math.abs(apart) / 2);
    circle.replaceChildren(draw("circle", { r: 1, class: "lab-thin" }),
      ...arrow(k, "lab-two", "key", -aside), ...arrow(q, "lab-one", "query", aside));

    const room = Math.max(curve.clientWidth, 200), height = 200, edge = 34;
    const most = Math.hypot(...query) * Math.hypot(...key);
    const across = d => edge + (d + LAST) / (2 * LAST) * (room - edge - 8);
    const up = s => height / 2 - 8 - s / most * (height / 2 - 34); // above, the curve's name
    const points = [];
    for (let d = -LAST; d <= LAST; d += 0.25) points.push(`${across(d)},${up(product(speed, d, 0))}`);
    const text = (x, y, words, place) =>
      draw("text", { x, y, class: "lab-small", "text-anchor": place }, words);
    curve.setAttribute("viewBox", `0 0 ${room} ${height}`);
    curve.replaceChildren(
      draw("line", { x1: edge, x2: room - 8, y1: up(0), y2: up(0), class: "lab-thin" }),
      draw("line", { x1: across(0), x2: across(0), y1: 20, y2: height - 36, class: "lab-thin" }),
      draw("polyline", { points: points.join(" "), class: "lab-line lab-six" }),
      draw("line", { x1: across(distance), x2: across(distance), y1: up(0), y2: up(score), class: "lab-thin" }),
      draw("circle", { cx: across(distance), cy: up(score), r: 6, class: "lab-fill lab-six" }),
      ...[-60, -40, -20, 0, 20, 40, 60].map(d => text(across(d), height - 20, fixed(d, 0), "middle")),
      text(across(0), height - 4, "distance: position of the query minus that of the key", "middle"),
      text(edge, 12, "product of the pair", "start"),
      text(edge - 4, up(1) + 4, "1", "end"), text(edge - 4, up(0) + 4, "0", "end"),
      text(edge - 4, up(-1) + 4, "−1", "end"));

    here.number("places", from, `${from} and ${to}`);
    here.number("distance", distance, fixed(distance, 0));
    here.number("score", score, fixed(score, 3));
    here.number("query-angle", a, fixed(a, 3));
    here.number("key-angle", b, fixed(b, 3));
    const wavelength = 2 * Math.PI / speed;
    here.number("wavelength", wavelength, wavelength < 100 ? fixed(wavelength, 1) : Math.round(wavelength).toLocaleString("en"));
    here.say(`Query at position ${from}, key at ${to}: the distance is ${fixed(distance, 0)} and the product of pair ` +
      `${pair.value} is ${fixed(score, 3)}.` + (on.value ? ` Both moved on by ${on.value}, and the product stayed.` : ""));
  };
  new ResizeObserver(() => here.redraw && here.redraw()).observe(curve);
  here.draw(all);
});
