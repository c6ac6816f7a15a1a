// Findings, those of one kind together: the smallest case first, the rest a press away.
const MOST_GROUPS = 60;
let groups = [], openGroups = MOST_GROUPS;

function headline(n) {
  const detail = data.details[n];
  return (detail && detail.explanation[0]) || at.reason(n) || "no reason given";
}

function collectGroups() {
  const found = new Map();
  for (const n of shown) if (at.fails(n)) {
    // Numbers differ from case to case of one fault.
    const key = [at.adapter(n), at.verdict(n), headline(n).replace(/[0-9][0-9.e+-]*/g, "#")].join("\n");
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(n);
  }
  const worst = numbers => Math.max(...numbers.map(n => data.records.bound[n] ?? data.records.atol[n] ?? 0));
  groups = [...found.values()].map(numbers => ({
    // A case with its detail stands for the group; then the smallest.
    numbers: numbers.sort((a, b) => (!(a in data.details) - !(b in data.details)) || at.size(a) - at.size(b)), worst: worst(numbers),
  }));
  const order = { count: (a, b) => b.numbers.length - a.numbers.length, worst: (a, b) => b.worst - a.worst, adapter: (a, b) => at.adapter(a.numbers[0]).localeCompare(at.adapter(b.numbers[0])) };
  groups.sort(order[$("sort-findings").value]);
}

function drawFindings() {
  collectGroups();
  const total = groups.reduce((sum, group) => sum + group.numbers.length, 0);
  $("findings-count").textContent = total ? `${plural(total, "case")} of ${plural(groups.length, "kind")}` : "";
  if (!total) {
    $("finding-list").replaceChildren(el("p", { class: data.findings ? "quiet" : "ok" }, data.findings ? "None in what is shown." : "None: every case that ran is right."));
    return;
  }
  const more = groups.length > openGroups ? el("p", {}, el("button", { type: "button", onclick: () => { openGroups = groups.length; drawFindings(); } }, `Show all ${groups.length} kinds`)) : null;
  $("finding-list").replaceChildren(...groups.slice(0, openGroups).map(findingNode), ...(more ? [more] : []));
}

function findingNode(group) {
  const first = group.numbers[0], verdict = at.verdict(first);
  const node = el("details", { class: "finding" }, el("summary", {},
    el("span", { class: `verdict ${verdict}` }, verdict), el("span", { class: "what" }, headline(first)),
    el("span", { class: "quiet" }, at.adapter(first)), el("span", { class: "right quiet" }, plural(group.numbers.length, "case")),
    el("span", { class: "right" }, group.worst ? `${figure(group.worst)}×` : "")));
  node.addEventListener("toggle", () => { if (node.open && !node.querySelector(".body")) node.append(findingBody(group, first)); });
  node.open_record = n => { node.open = true; const old = node.querySelector(".body"); if (old) old.remove(); node.append(findingBody(group, n)); };
  return node;
}

function openFinding(n) {
  const where = groups.findIndex(group => group.numbers.includes(n));
  if (where < 0) return;
  if (where >= openGroups) { openGroups = groups.length; drawFindings(); }
  const node = $("finding-list").children[where];
  node.open_record(n);
  node.scrollIntoView({ block: "start" });
  node.querySelector("summary").focus({ preventScroll: true });
}

function findingBody(group, n) {
  const detail = data.details[n], body = el("div", { class: "body" });
  const text = el("div", {}, el("h3", {}, at.name(n), " ", el("code", { class: "quiet" }, at.id(n))));
  if (at.reason(n)) text.append(el("p", {}, at.reason(n)));
  if (data.records.stability[n]) text.append(el("p", { class: "quiet" }, `Run three times: ${data.records.stability[n]}.`));
  body.append(el("div", { class: "columns" }, text, detail ? el("div", { class: "pictures" }, maskPicture(detail), rowsPicture(detail)) : null));
  if (!detail) text.append(el("p", { class: "quiet" }, `Its evidence was left out of this page to keep it small (${data.findings} findings); it is in the records.`));
  else {
    if (detail.explanation.length) text.append(el("ol", { class: "why" }, detail.explanation.map(line => el("li", {}, line))));
    text.append(commandNode(detail));
    for (const source of detail.pictures) body.append(el("figure", {}, el("img", { src: source, alt: "picture left by the finding" })));
    body.append(evidenceTable(detail),
      el("details", {}, el("summary", {}, "case as JSON"), el("pre", {}, caseText(detail.case))));
  }
  if (group.numbers.length > 1) {
    const swap = other => () => { const fresh = findingBody(group, other); body.replaceWith(fresh); fresh.querySelector(".others [aria-current=true]").focus(); };
    body.append(el("details", { open: group.numbers.length <= 8 || n !== group.numbers[0] }, el("summary", {}, `the ${count(group.numbers.length)} cases of this kind, smallest first`),
      el("div", { class: "others" }, group.numbers.slice(0, 300).map(other => el("button", { type: "button", "aria-current": other === n ? "true" : null, onclick: swap(other) }, at.name(other))))));
  }
  return body;
}

function caseText(body) {
  // One field a line, lists on one: it is read, and pasted into a file.
  return "{\n" + Object.entries(body).map(([name, value]) => ` ${JSON.stringify(name)}: ${JSON.stringify(value)}`).join(",\n") + "\n}";
}

function commandNode(detail) {
  const button = el("button", { type: "button" }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(detail.replay); button.textContent = "Copied"; } catch { getSelection().selectAllChildren(button.previousSibling); }
  });
  return el("div", {}, el("div", { class: "command" }, el("code", {}, detail.replay), button),
    detail.saved ? null : el("p", { class: "quiet" }, "CASE.json is the case below, saved to a file."));
}

function evidenceTable(detail) {
  const word = passed => passed === true ? el("span", { class: "ok" }, "holds") : passed === false ? el("span", { class: "bad" }, "fails") : el("span", { class: "quiet" }, "does not apply");
  const measures = m => Object.entries(m).map(([name, value]) => `${name} ${typeof value === "number" ? figure(value) : value}`).join(", ");
  return el("div", { class: "scroll", tabindex: 0 }, el("table", {}, el("thead", {}, el("tr", {}, ["evidence", "", "measured", "said"].map(h => el("th", { scope: "col" }, h)))),
    el("tbody", {}, detail.evidence.map(([kind, passed, message, measure, decides]) => el("tr", {}, el("td", {}, kind, decides ? null : el("span", { class: "quiet" }, " (beside the verdict)")),
      el("td", {}, word(passed)), el("td", {}, measures(measure)), el("td", { class: "wide" }, message))))));
}
