// The matrix, the records, the changes against a baseline, and where the time went.
const PAGE = 25;
const tableState = { sort: "verdict", down: false, page: 0, matrix: "family", matrixDown: false };

function sortButton(label, name, state, redraw, cls) {
  const sorted = state.sort === name;
  return el("th", { scope: "col", class: cls, "aria-sort": sorted ? (state.down ? "descending" : "ascending") : null },
    el("button", { type: "button", "data-sort": name, onclick: () => { state.down = sorted ? !state.down : false; state.sort = name; redraw(name); } }, label));
}

function summarise() {
  // family -> adapter -> what its cell shows, of every record: the matrix is how one filters, so it does not shrink.
  const cells = new Map();
  for (const n of at.all()) {
    const key = at.family(n) + "\n" + at.adapter(n);
    if (!cells.has(key)) cells.set(key, { pass: 0, ran: 0, unsupported: 0, worst: null, failing: new Map() });
    const cell = cells.get(key), verdict = at.verdict(n);
    if (verdict === "UNSUPPORTED") { cell.unsupported++; continue; }
    cell.ran++;
    if (verdict === "PASS") cell.pass++; else cell.failing.set(verdict, (cell.failing.get(verdict) || 0) + 1);
    const ratio = data.records.bound[n] ?? data.records.atol[n];
    if (ratio !== null && (cell.worst === null || ratio > cell.worst)) cell.worst = ratio;
  }
  return cells;
}

function drawMatrix() {
  const cells = summarise(), get = (family, adapter) => cells.get(family + "\n" + adapter);
  const order = [...data.families], by = tableState.matrix, weight = family => { const c = get(family, by); return c ? c.ran - c.pass + Math.min(0.999, (c.worst || 0) / 1e6) : -1; };
  order.sort((a, b) => by === "family" ? a.localeCompare(b) : weight(b) - weight(a));
  if (tableState.matrixDown) order.reverse();
  const head = (label, name, cls) => el("th", { scope: "col", class: cls, "aria-sort": by === name ? (tableState.matrixDown ? "descending" : "ascending") : null },
    el("button", { type: "button", title: name === "family" ? "Sort by name" : "Sort by what fails here", onclick: () => { tableState.matrixDown = by === name && !tableState.matrixDown; tableState.matrix = name; drawMatrix(); } }, label));
  const cell = (family, adapter) => {
    const c = get(family, adapter);
    if (!c) return el("td", { class: "none" }, "");
    if (!c.ran) return el("td", { class: "none", title: `${plural(c.unsupported, "case")} declared unsupported` }, "not supported");
    const failing = [...c.failing].sort((a, b) => b[1] - a[1]).map(([verdict, n]) => el("span", { class: "n" }, `${n} ${verdict}`));
    const bad = failing.length > 0, two = value => figure(+value.toPrecision(2));
    const shade = c.worst === null || bad ? null : `background: rgba(var(--shade), ${(0.04 + 0.26 * Math.min(1, c.worst)).toFixed(3)})`;
    return el("td", { class: bad ? "fails" : "", style: shade }, el("button", { type: "button", onclick: () => { setFilter({ adapter, family, verdict: "", text: "" }); $("findings").scrollIntoView(); } },
      bad ? failing : el("span", { class: "n" }, count(c.pass)), el("span", { class: "ratio" }, [bad ? `of ${count(c.ran)}` : null, c.worst === null ? null : two(c.worst)].filter(Boolean).join(" · "))));
  };
  // A place to break after each hyphen: adapters' names are longer than their columns.
  const broken = name => name.split(/(?<=[-@])/).flatMap(part => [part, el("wbr")]);
  $("matrix-table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, head("kind of case", "family"), data.adapters.map(a => head(broken(a), a, "adapter")))),
    el("tbody", {}, order.map(family => el("tr", {}, el("th", { scope: "row" }, family), data.adapters.map(adapter => cell(family, adapter)))))));
}

const RECORD_COLUMNS = [
  ["verdict", "verdict", n => -data.records.verdict[n] + (at.fails(n) ? -100 : 0), ""], ["adapter", "adapter", at.adapter, ""], ["case", "name", at.name, ""],
  ["max-abs-diff", "error", n => data.records.error[n], "num"], ["of bound", "bound", n => data.records.bound[n], "num"], ["of atol", "atol", n => data.records.atol[n], "num"],
  ["time", "seconds", n => data.records.seconds[n], "num"],
];

function compareBy(value, down) {
  const turn = down ? -1 : 1;
  return (a, b) => {
    const x = value(a), y = value(b);
    if (x === y) return a - b;
    if (x === null) return 1;     // what is not known comes last either way
    if (y === null) return -1;
    return turn * (typeof x === "string" ? x.localeCompare(y) : x - y);
  };
}

function drawRecords(keepPage) {
  if (keepPage !== true) tableState.page = 0;
  const [, , value] = RECORD_COLUMNS.find(([, name]) => name === tableState.sort);
  const sorted = [...shown].sort(compareBy(value, tableState.down)), pages = Math.max(1, Math.ceil(sorted.length / PAGE));
  const rows = sorted.slice(tableState.page * PAGE, (tableState.page + 1) * PAGE);
  const redraw = name => { drawRecords(); const button = document.querySelector(`#record-table [data-sort="${name}"]`); if (button) button.focus(); };
  $("record-table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, RECORD_COLUMNS.map(([label, name, , cls]) => sortButton(label, name, tableState, redraw, cls)))),
    el("tbody", {}, rows.map(n => el("tr", {}, el("td", {}, el("span", { class: `verdict ${at.verdict(n)}` }, at.verdict(n))), el("td", { class: "name" }, at.adapter(n)),
      el("td", { class: "wide" }, at.fails(n) ? el("button", { type: "button", class: "link", onclick: () => openFinding(n) }, at.name(n)) : el("span", { title: at.reason(n) || at.id(n) }, at.name(n))),
      ["error", "bound", "atol"].map(name => el("td", { class: "num" }, figure(data.records[name][n]))), el("td", { class: "num" }, seconds(data.records.seconds[n])))))));
  const turn = (label, by) => el("button", { type: "button", disabled: tableState.page + by < 0 || tableState.page + by >= pages, onclick: () => { tableState.page += by; drawRecords(true); } }, label);
  $("pager").replaceChildren(turn("Previous", -1), el("span", { class: "quiet" }, `page ${tableState.page + 1} of ${pages}`), turn("Next", 1));
}

function drawChanges(all) {
  const node = $("changes");
  if (!node || !data.baseline.changes.length) return;
  const rows = all ? data.baseline.changes : data.baseline.changes.slice(0, PAGE), more = data.baseline.changes.length > rows.length;
  node.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ["what", "adapter", "case", ""].map(h => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows.map(([kind, adapter, name, id, sentence]) => el("tr", {}, el("td", { class: "bad name" }, kind), el("td", { class: "name" }, adapter),
      el("td", { class: "wide" }, el("button", { type: "button", class: "link", onclick: () => setFilter({ text: id, adapter: "", family: "", verdict: "" }) }, name)), el("td", {}, sentence))))),
    more ? el("p", {}, el("button", { type: "button", onclick: () => drawChanges(true) }, `Show all ${count(data.baseline.changes.length)} changes`)) : "");
}

const STAGE_COLORS = { build: "#7a9cc6", prepare: "#b9b2d6", plan: "#d9a441", run: "#c2553f", golden: "#4f8f6b", judge: "#8a8f98" };

function drawTime() {
  const stages = Object.keys(STAGE_COLORS).filter(stage => Object.values(data.stages).some(s => s[stage]));
  const others = [...new Set(Object.values(data.stages).flatMap(Object.keys))].filter(stage => !(stage in STAGE_COLORS));
  const shade = stage => STAGE_COLORS[stage] || "#b5b5b5", all = [...stages, ...others];
  const row = adapter => {
    const numbers = at.all().filter(n => at.adapter(n) === adapter && data.records.seconds[n] !== null).map(n => data.records.seconds[n]).sort((a, b) => a - b);
    const mine = data.stages[adapter] || {}, sum = Object.values(mine).reduce((a, b) => a + b, 0), total = numbers.reduce((a, b) => a + b, 0);
    return el("tr", {}, el("td", { class: "name" }, adapter), el("td", { class: "num" }, count(numbers.length)), el("td", { class: "num" }, seconds(total)), el("td", { class: "num" }, seconds(quantile(numbers, 0.5))), el("td", { class: "num" }, seconds(numbers.at(-1) ?? null)),
      el("td", {}, el("div", { class: "stack", role: "img", "aria-label": all.map(s => `${s} ${Math.round(100 * (mine[s] || 0) / (sum || 1))} %`).join(", ") }, all.map(s => mine[s] ? el("span", { style: `background:${shade(s)};width:${100 * mine[s] / sum}%`, title: `${s}: ${seconds(mine[s])}` }) : null))));
  };
  $("time-table").replaceChildren(el("div", { class: "legend" }, all.map(s => el("span", {}, el("span", { class: "swatch", style: `background:${shade(s)}` }), s))),
    el("table", {}, el("thead", {}, el("tr", {}, ["adapter", "records", "total", "median", "longest", "share of each stage"].map((h, i) => el("th", { scope: "col", class: i > 0 && i < 5 ? "num" : "" }, h)))), el("tbody", {}, data.adapters.map(row))));
}
