"use strict";
// The data, the filter, and small helpers. Texts of the data reach the page as text nodes only.
let data, shown = [];          // shown: numbers of the records that pass the filter
const watchers = [];           // called when `shown` changes
const PASS = 0, SVG = "http://www.w3.org/2000/svg";
const $ = id => document.getElementById(id);

async function unpack() {
  const packed = Uint8Array.from(atob($("data").textContent.trim()), c => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return node;
}

const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const count = n => n.toLocaleString("en");
const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e4 || size < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(3));
}

const seconds = s => s === null ? "–" : s < 1 ? `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms` : s < 120 ? `${s.toFixed(1)} s` : `${(s / 60).toFixed(1)} min`;

// A record's figures by its number.
const at = {
  verdict: n => data.verdicts[data.records.verdict[n]],
  adapter: n => data.adapters[data.records.adapter[n]],
  family: n => data.families[data.cases.family[data.records.case[n]]],
  name: n => data.cases.name[data.records.case[n]],
  id: n => data.cases.id[data.records.case[n]],
  size: n => data.cases.size[data.records.case[n]],
  reason: n => data.reasons[data.records.reason[n]],
  fails: n => !["PASS", "UNSUPPORTED"].includes(at.verdict(n)),
  all: () => Array.from(data.records.case.keys()),
};

function readFilter() {
  return { text: $("f-text").value.trim().toLowerCase(), adapter: $("f-adapter").value, family: $("f-family").value, verdict: $("f-verdict").value };
}

function applyFilter() {
  const f = readFilter();
  shown = at.all().filter(n =>
    (!f.adapter || at.adapter(n) === f.adapter) && (!f.family || at.family(n) === f.family) &&
    (!f.verdict || at.verdict(n) === f.verdict || (f.verdict === "not PASS" && at.fails(n))) &&
    (!f.text || at.name(n).toLowerCase().includes(f.text) || at.id(n).startsWith(f.text) || at.reason(n).toLowerCase().includes(f.text)));
  $("f-count").textContent = shown.length === data.records.case.length ? plural(shown.length, "record") : `${count(shown.length)} of ${plural(data.records.case.length, "record")}`;
  for (const watcher of watchers) watcher();
}

function setFilter(values) {
  for (const name of ["text", "adapter", "family", "verdict"]) if (name in values) $("f-" + name).value = values[name];
  applyFilter();
}

function quantile(sorted, q) {
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : null;
}
