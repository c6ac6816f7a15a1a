// Errors over their bound, and where the cases lie.
function drawDistribution() {
  const metric = document.querySelector("input[name=metric]:checked").value;
  const column = data.records[metric], LOW = -2.5, HIGH = 2, BINS = 90, LEFT = 215, WIDTH = 560, ROW = 40;
  const byAdapter = new Map();
  for (const n of shown) if (column[n] !== null) {
    const name = at.adapter(n);
    if (!byAdapter.has(name)) byAdapter.set(name, []);
    byAdapter.get(name).push(column[n]);
  }
  const x = value => LEFT + WIDTH * (Math.min(HIGH, Math.max(LOW, Math.log10(value || 1e-9))) - LOW) / (HIGH - LOW);
  const names = [...byAdapter.keys()], height = names.length * ROW + 52;
  const target = $("distribution");
  if (!names.length) { target.replaceChildren(el("p", { class: "quiet" }, "No record shown has this figure.")); return; }
  const picture = svg("svg", { viewBox: `0 0 ${LEFT + WIDTH + 205} ${height}`, role: "img", "aria-label": "Distribution of errors by adapter" });
  for (const tick of [0.01, 0.1, 1, 10, 100]) {
    picture.append(
      svg("line", { x1: x(tick), x2: x(tick), y1: 6, y2: height - 40, stroke: tick === 1 ? "var(--bad)" : "var(--line)", "stroke-dasharray": tick === 1 ? null : "2 3" }),
      svg("text", { x: x(tick), y: height - 24, "text-anchor": "middle", class: "quiet" }, String(tick)));
  }
  picture.append(svg("text", { x: x(1), y: height - 7, "text-anchor": "middle", class: "quiet" }, metric === "bound" ? "1 = all that rounding can explain" : "1 = the flat tolerance"));
  names.forEach((name, row) => {
    const values = byAdapter.get(name).sort((a, b) => a - b), bins = new Array(BINS).fill(0), base = row * ROW + ROW;
    for (const value of values) bins[Math.min(BINS - 1, Math.floor(BINS * (x(value) - LEFT) / WIDTH))]++;
    const most = Math.max(...bins), step = WIDTH / BINS;
    picture.append(svg("text", { x: LEFT - 12, y: base - 8, "text-anchor": "end" }, name),
      svg("line", { x1: LEFT, x2: LEFT + WIDTH, y1: base, y2: base, stroke: "var(--line)" }));
    bins.forEach((n, bin) => {
      // The square root keeps one case among thousands visible: it is the one that matters.
      if (n) {
        const tall = Math.max(2, Math.sqrt(n / most) * (ROW - 8)), over = LOW + (HIGH - LOW) * (bin + 0.5) / BINS > 0;
        picture.append(svg("rect", { x: LEFT + bin * step, y: base - tall, width: step - 0.8, height: tall, fill: over ? "var(--bad)" : "var(--accent)" },
          svg("title", {}, `${name}: ${plural(n, "record")} near ${figure(10 ** (LOW + (HIGH - LOW) * (bin + 0.5) / BINS))}`)));
      }
    });
    picture.append(svg("text", { x: LEFT + WIDTH + 14, y: base - 8, class: "quiet" }, `median ${figure(quantile(values, 0.5))}, largest ${figure(values.at(-1))}`));
  });
  target.replaceChildren(picture);
}

const PANELS = [
  ["no window", (p, e, w) => w === null],
  ["window longer than the request", (p, e, w) => w !== null && w >= p + e - 1],
  ["window bites, extend fits in it", (p, e, w) => w !== null && w < p + e - 1 && e <= w + 1],
  ["extend longer than the window", (p, e, w) => w !== null && w < p + e - 1 && e > w + 1],
];

function panelPoints() {
  // [prefix, extend, record, fails] of each request shown, by panel.
  const points = PANELS.map(() => []);
  for (const n of shown) {
    const which = data.records.case[n], lengths = data.cases.requests[which], w = data.cases.window[which];
    const fails = at.fails(n), place = fails ? (data.details[n] || {}).place : null;
    if (at.verdict(n) === "UNSUPPORTED") continue;
    for (let i = 0; i < lengths.length; i += 2) {
      const p = lengths[i], e = lengths[i + 1], guilty = fails && (!place || place.request === i / 2);
      points[PANELS.findIndex(([, test]) => test(p, e, w))].push([p, e, n, guilty]);
    }
  }
  return points;
}

function drawPlane() {
  const all = panelPoints(), points = all.flat(), longest = which => Math.log2(2 + points.reduce((most, point) => Math.max(most, point[which]), 1));
  const most = [longest(0), longest(1)];
  $("panels").replaceChildren(...PANELS.map(([title], index) => {
    const points = all[index].sort((a, b) => a[3] - b[3]);
    const canvas = el("canvas", { role: "img", "aria-label": `${title}: ${points.length} requests` });
    const failing = points.filter(p => p[3]).length;
    const panel = el("div", {}, el("h3", {}, title, " ", el("span", {}, `${plural(points.length, "request")}${failing ? `, ${count(failing)} not passing` : ""}`)), canvas);
    requestAnimationFrame(() => paintPanel(canvas, points, most));
    return panel;
  }));
}

function paintPanel(canvas, points, most) {
  const scale = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight, pad = { l: 38, b: 30, t: 6, r: 8 };
  canvas.width = width * scale; canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const x = p => pad.l + (width - pad.l - pad.r) * Math.log2(1 + p) / most[0], y = e => height - pad.b - (height - pad.t - pad.b) * Math.log2(1 + e) / most[1];
  pen.font = "11px system-ui, sans-serif"; pen.strokeStyle = color("line"); pen.fillStyle = color("quiet"); pen.lineWidth = 1;
  for (const tick of [0, 1, 8, 64, 512, 4096, 32768, 262144]) {
    const text = tick >= 1024 ? `${tick / 1024}k` : String(tick), fits = axis => Math.log2(1 + tick) <= most[axis];
    pen.beginPath();
    if (fits(0)) { pen.moveTo(x(tick), pad.t); pen.lineTo(x(tick), height - pad.b); pen.textAlign = "center"; pen.fillText(text, x(tick), height - pad.b + 13); }
    if (fits(1)) { pen.moveTo(pad.l, y(tick)); pen.lineTo(width - pad.r, y(tick)); pen.textAlign = "right"; pen.fillText(text, pad.l - 5, y(tick) + 4); }
    pen.stroke();
  }
  pen.textAlign = "right"; pen.fillText("prefix", width - pad.r, height - 4);
  pen.save(); pen.translate(10, pad.t); pen.rotate(-Math.PI / 2); pen.fillText("extend", 0, 0); pen.restore();
  const good = color("accent"), bad = color("bad");
  for (const [p, e, , fails] of points) {
    if (!fails) { pen.globalAlpha = 0.35; pen.fillStyle = good; pen.fillRect(x(p) - 1.5, y(e) - 1.5, 3, 3); continue; }
    pen.globalAlpha = 0.9; pen.strokeStyle = bad; pen.lineWidth = 1.4; pen.beginPath();
    pen.moveTo(x(p) - 3.5, y(e) - 3.5); pen.lineTo(x(p) + 3.5, y(e) + 3.5); pen.moveTo(x(p) - 3.5, y(e) + 3.5); pen.lineTo(x(p) + 3.5, y(e) - 3.5); pen.stroke();
  }
  pen.globalAlpha = 1;
  const nearest = event => {
    let best = null, least = 144;
    for (const point of points) {
      const away = (x(point[0]) - event.offsetX) ** 2 + (y(point[1]) - event.offsetY) ** 2;
      if (away < least || (away === least && point[3])) { least = away; best = point; }
    }
    return best;
  };
  canvas.onmousemove = event => {
    const point = nearest(event);
    $("plane-tip").textContent = point ? `prefix ${count(point[0])}, extend ${count(point[1])}: ${at.verdict(point[2])} ${at.name(point[2])} on ${at.adapter(point[2])}` : "\u00a0";
  };
  canvas.onclick = event => { const point = nearest(event); if (point) setFilter({ text: at.id(point[2]) }); };
}
