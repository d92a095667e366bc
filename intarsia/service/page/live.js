// What the service does now: the counters of the engine, read once a second while the page is visible.

import { call } from "./api.js";
import { sparkline } from "./chart.js";
import { $, el, milliseconds, number, say } from "./dom.js";

const EVERY = 1000; // milliseconds
const KEPT = 60; // readings of the small curve

let before = null;
let rates = [];
let mixed = null; // the passes of the last reading that had any: tokens and tasks a pass
let cells = null;

// Figures: name, and what the title says.
const FIGURES = [
  ["Rows a second", "Rows that passes answered in the last second"],
  ["Latency p50", "Half of the latest requests took at most this time"],
  ["Latency p95", "95 of 100 of the latest requests took at most this time"],
  ["Latency p99", "99 of 100 of the latest requests took at most this time"],
  ["Queue", "Rows that wait for a pass"],
  ["Tokens a pass", "Tokens of one pass through the base, on average"],
  ["Tasks a pass", "Different tasks that share one pass, on average"],
  ["Resident tasks", "Tasks on the device"],
  ["Refused", "Requests that were refused because the queue was full, since the start"],
];

export async function startLive() {
  cells = FIGURES.map(([, help]) => el("dd", { title: help }, "–"));
  $("figures").replaceChildren(...FIGURES.map(([name], at) => el("div", {}, el("dt", {}, name), cells[at])));
  for (;;) {
    if (!document.hidden) await read();
    await new Promise((go) => setTimeout(go, EVERY));
  }
}

async function read() {
  let now;
  try {
    now = await call("/v1/stats");
  } catch (error) {
    say($("live-problem"), error.message);
    before = null;
    return;
  }
  say($("live-problem"), "");
  show({ ...now, at: performance.now() });
}

function show(now) {
  const { engine, latency_ms: latency } = now;
  if (before !== null && engine.rows >= before.engine.rows) {
    const since = (name) => engine[name] - before.engine[name];
    rates = [...rates, (1000 * since("rows")) / (now.at - before.at)].slice(-KEPT);
    if (since("passes") > 0) mixed = [since("tokens") / since("passes"), since("pass_tasks") / since("passes")];
  } else if (engine.passes > 0) {
    mixed = [engine.tokens / engine.passes, engine.pass_tasks / engine.passes]; // since the start
  }
  before = now;
  const rate = rates.length ? number(rates.at(-1), rates.at(-1) < 10 ? 1 : 0) : "–";
  const time = (name) => (latency.calls ? milliseconds(latency[name]) : "–");
  const values = [
    rate, time("p50"), time("p95"), time("p99"), number(engine.queue_rows),
    mixed ? number(mixed[0]) : "–", mixed ? number(mixed[1], 1) : "–", number(engine.resident_tasks), number(engine.refused)];
  values.forEach((value, at) => { cells[at].textContent = value; });
  const highest = Math.max(...rates, 0);
  const label = rates.length === 0 ? "Rows a second in the last minute" : `Rows a second in the last minute: now ${rate}, highest ${number(highest)}`;
  $("spark").replaceChildren(sparkline(rates, KEPT, label), el("p", { class: "soft help", "aria-hidden": "true" }, label));
}
