// The filters of a ledger. Without this script every claim is shown.
(() => {
  const place = document.querySelector(".claim-filters");
  if (!place) return;
  const rows = Object.entries(JSON.parse(place.dataset.rows));
  const chosen = {}, asked = new URLSearchParams(location.search);
  const count = document.createElement("output");

  const show = () => {
    let shown = 0;
    for (const [id, row] of rows) {
      const fits = Object.entries(chosen).every(([key, value]) => !value || row[key] === value);
      document.getElementById(id).hidden = !fits;
      shown += fits;
    }
    for (const section of document.querySelectorAll("section[id^='ledger-']")) {
      section.hidden = !section.querySelector(".claim-card:not([hidden])");
    }
    count.textContent = `${shown} of ${rows.length} claims`;
  };

  // The address holds what was chosen.
  const keep = () => {
    const state = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
    history.replaceState(null, "", `${location.pathname}${state.size ? `?${state}` : ""}${location.hash}`);
  };

  const boxes = Object.keys(rows[0][1]).map((key) => {
    const label = document.createElement("label");
    const box = document.createElement("select");
    box.name = key;
    box.append(new Option("all", ""));
    const values = new Set(rows.map(([, row]) => row[key]));
    for (const value of key === "year" ? [...values].sort() : values) {
      if (value) box.append(new Option(value, value));
    }
    if (values.has(asked.get(key))) chosen[key] = box.value = asked.get(key);
    box.addEventListener("change", () => {
      chosen[key] = box.value;
      keep();
      show();
    });
    label.append(`${key} `, box);
    place.append(label);
    return box;
  });
  place.append(count);

  // A link to a claim that is filtered away shows it again.
  window.addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target || !target.hidden) return;
    for (const box of boxes) {
      box.value = "";
      chosen[box.name] = "";
    }
    keep();
    show();
    target.scrollIntoView();
  });
  show();
})();
