// What a finding's queries should see, and what they saw where the record has an X-ray.
// Error over bound of each row and head: queries down, heads across, red where it is too large.
function rowsPicture(detail) {
  const m = detail.rows;
  if (!m) return null;
  const CELL = 12, LEFT = 52, TOP = 20, heads = m.ratio[0].length, picture = svg("svg", { width: LEFT + heads * CELL + 8, height: TOP + m.ratio.length * CELL + 6, role: "img", "aria-label": "Error over bound by query and head" });
  m.ratio.forEach((row, q) => row.forEach((value, head) => {
    const over = value === null || value > 1, strength = value === null ? 1 : over ? 0.45 + 0.55 * Math.min(1, Math.log10(value) / 2) : 0.08 + 0.5 * value;
    picture.append(svg("rect", { x: LEFT + head * CELL, y: TOP + q * CELL, width: CELL - 1, height: CELL - 1, fill: over ? "var(--bad)" : "var(--accent)", "fill-opacity": strength.toFixed(2) },
      svg("title", {}, `query ${m.first_query + q}, head ${head}: ${value === null ? "not finite" : figure(value)}`)));
  }));
  const step = Math.max(1, Math.ceil(m.ratio.length / 12));
  for (let q = 0; q < m.ratio.length; q += step) picture.append(svg("text", { x: LEFT - 7, y: TOP + q * CELL + CELL - 2, "text-anchor": "end", class: "quiet" }, `q ${m.first_query + q}`));
  for (let head = 0; head < heads; head += 4) picture.append(svg("text", { x: LEFT + head * CELL + CELL / 2, y: TOP - 6, "text-anchor": "middle", class: "quiet" }, String(head)));
  return el("figure", {}, picture, el("figcaption", {}, `Request ${m.request}: error over bound, queries down, heads across. `, el("span", { class: "swatch", style: "background: var(--accent); opacity: .5" }), "within the bound ", el("span", { class: "swatch", style: "background: var(--bad)" }), "over it"));
}

function maskPicture(detail) {
  const m = detail.picture;
  if (!m) return null;
  const CELL = m.keys > 48 ? 6 : m.keys > 20 ? 9 : 14, LEFT = 52, TOP = 26, across = m.keys * CELL, down = m.rows.length * CELL;
  const picture = svg("svg", { width: LEFT + across + 8, height: TOP + down + 8, role: "img", "aria-label": "Keys that each query should see" });
  const put = (q, k, how) => {
    if (k < m.first_key || k >= m.first_key + m.keys || q < m.first_query || q >= m.first_query + m.rows.length) return;
    picture.append(svg("rect", { x: LEFT + (k - m.first_key) * CELL, y: TOP + (q - m.first_query) * CELL, width: CELL - 1, height: CELL - 1, ...how }));
  };
  const span = (first, last, row, how) => {
    const from = Math.max(first, m.first_key), to = Math.min(last, m.first_key + m.keys);
    if (to > from) picture.append(svg("rect", { x: LEFT + (from - m.first_key) * CELL, y: TOP + row * CELL, width: (to - from) * CELL - 1, height: CELL - 1, ...how }));
  };
  m.rows.forEach(([first, last], row) => {
    span(m.first_key, m.kv_len, row, { fill: "var(--wash)" });
    span(first, last, row, { fill: "var(--accent)", "fill-opacity": m.first_query + row === m.marked ? 0.75 : 0.38 });
  });
  for (const [q, a, b] of m.extra) for (let k = a; k <= b; k++) put(q, k, { fill: "var(--bad)" });
  for (const [q, a, b] of m.missing) for (let k = a; k <= b; k++) put(q, k, { fill: "var(--paper)", stroke: "var(--bad)", "stroke-width": 1.4 });
  const edge = (k, label) => {
    if (k <= m.first_key || k >= m.first_key + m.keys) return;
    const x = LEFT + (k - m.first_key) * CELL - 0.5;
    picture.append(svg("line", { x1: x, x2: x, y1: TOP - (label ? 6 : 0), y2: TOP + down, stroke: label ? "var(--ink)" : "var(--quiet)", "stroke-width": label ? 1.3 : 0.6, "stroke-dasharray": label ? null : "1 2" }));
    if (label) picture.append(svg("text", { x, y: TOP - 9, "text-anchor": "middle", class: "quiet" }, label));
  };
  if (m.page_size > 1) for (let k = Math.ceil(m.first_key / m.page_size) * m.page_size; k < m.first_key + m.keys; k += m.page_size) edge(k, null);
  edge(m.prefix, `prefix ${m.prefix}`);
  const label = (q, strong) => picture.append(svg("text", { x: LEFT - 7, y: TOP + (q - m.first_query) * CELL + CELL, "text-anchor": "end", class: strong ? "" : "quiet" }, `q ${q}`));
  const ends = [m.first_query, m.first_query + m.rows.length - 1];
  for (const q of ends) if (Math.abs(q - m.marked) * CELL > 13) label(q, false);
  if (m.marked >= ends[0] && m.marked <= ends[1]) label(m.marked, true);
  const part = m.keys < m.kv_len ? ` (keys ${m.first_key} to ${m.first_key + m.keys - 1} of ${m.kv_len})` : "";
  const key = (style, text) => [el("span", { class: "swatch", style }), text];
  return el("figure", {}, picture, el("figcaption", {},
    `Request ${m.request}${m.head === null || m.head === undefined ? "" : `, head ${m.head}`}: queries down, keys across${part}. `,
    key("background: var(--accent); opacity: .6", "should be seen"),
    m.seen ? [", ", key("background: var(--bad)", "seen and should not be"), ", ", key("background: var(--paper); border-color: var(--bad)", "should be seen and is not")]
      : ". The darker row has the largest error. Run attn-harness xray to see what the kernel attended to."));
}
