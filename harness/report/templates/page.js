// Putting it together.
function drawTotals() {
  const totals = data.verdicts.map((verdict, index) => [verdict, data.records.verdict.filter(v => v === index).length]);
  $("totals").replaceChildren(...totals.filter(([verdict, n]) => n || verdict === "PASS").map(([verdict, n]) => el("li", {},
    el("button", { type: "button", onclick: () => setFilter({ verdict: $("f-verdict").value === verdict ? "" : verdict }) }, el("span", { class: `n verdict-${verdict} ${verdict === "PASS" ? "ok" : verdict === "UNSUPPORTED" ? "quiet" : "bad"}` }, count(n)), el("span", { class: "v" }, verdict)))));
  for (const [id, values] of [["f-adapter", data.adapters], ["f-family", [...data.families].sort()], ["f-verdict", ["not PASS", ...totals.filter(([, n]) => n).map(([v]) => v)]]])
    $(id).append(...values.map(value => el("option", { value }, value)));
}

function start() {
  if (data.records.bound.every(v => v === null)) document.querySelector("input[name=metric][value=atol]").checked = true;
  if (!data.records.stability.length) data.records.stability = data.records.case.map(() => "");
  drawTotals(); drawMatrix(); drawChanges(); drawTime();
  watchers.push(drawFindings, drawDistribution, drawPlane, drawRecords);
  let waiting = 0;
  $("f-text").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(applyFilter, 120); });
  for (const id of ["f-adapter", "f-family", "f-verdict"]) $(id).addEventListener("change", applyFilter);
  $("filter").addEventListener("reset", () => setTimeout(applyFilter));
  $("filter").addEventListener("submit", event => { event.preventDefault(); applyFilter(); });
  $("sort-findings").addEventListener("change", drawFindings);
  for (const radio of document.querySelectorAll("input[name=metric]")) radio.addEventListener("change", drawDistribution);
  document.addEventListener("keydown", event => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); $("f-text").focus(); }
  });
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawPlane, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawPlane);
  addEventListener("beforeprint", () => { for (const node of [...document.querySelectorAll(".finding")].slice(0, 20)) { node.open = true; if (!node.querySelector(".body")) node.dispatchEvent(new Event("toggle")); } });
  applyFilter();
  document.documentElement.dataset.ready = "yes";
}

unpack().then(read => { data = read; start(); }, problem => {
  document.querySelector("main").prepend(el("p", { class: "notice" }, `This browser cannot unpack the report's data (${problem.message}); a release of 2023 or later can.`));
});
