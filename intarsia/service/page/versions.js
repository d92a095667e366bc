// The dialog of a task: what it is, its versions side by side, their curves, their answers, and an older one again.

import { answer } from "./answers.js";
import { administrator, call } from "./api.js";
import { inputFor } from "./ask.js";
import { lineChart } from "./chart.js";
import { $, bytes, date, el, number, percent, problem, score, scores, taskKind } from "./dom.js";

const CURVES = 5; // of the newest versions
const LABELS = 12; // that show at once; the rest opens

let changed = () => {}; // called when another version is served

export function prepareVersions(listener) {
  changed = listener;
  $("task-close").addEventListener("click", () => $("task-dialog").close());
}

export async function openTask(name) {
  $("task-title").textContent = name;
  $("task-status").textContent = "Reading the versions …";
  $("task-body").replaceChildren();
  problem($("task-problem"), null);
  if (!$("task-dialog").open) $("task-dialog").showModal();
  try {
    const [served, all] = await Promise.all([
      call(`/v1/tasks/${encodeURIComponent(name)}`), call(`/v1/tasks/${encodeURIComponent(name)}/versions`)]);
    if ($("task-title").textContent !== name) return; // another task was opened
    $("task-status").textContent = "";
    $("task-body").replaceChildren(...content(served, all.versions));
  } catch (error) {
    $("task-status").textContent = "";
    problem($("task-problem"), error);
  }
}

function content(served, versions) {
  const newest = [...versions].reverse();
  const intact = newest.filter((version) => version.state === "ok");
  return [
    ...(served.state === "ok" ? [facts(served)] : []),
    el("h3", {}, "Versions"),
    table(newest),
    ...curves(intact),
    ...(intact.length > 0 ? [comparison(served.task, intact)] : []),
  ];
}

function facts(task) {
  const rows = task.rows ? ["train", "dev", "test"].filter((part) => part in task.rows).map((part) => `${number(task.rows[part])} ${part}`).join(", ") : "–";
  const given = [
    ["Kind", taskKind(task)],
    ["Labels", ...labels(task.labels || [])],
    ["Rows", rows],
    ["Texts are cut at", task.max_length ? `${number(task.max_length)} tokens` : "–"],
    ["Parameters", task.parameters ? `${number(task.parameters.total)} (${percent(task.share)} of the base)` : "–"],
  ];
  return el("dl", { class: "facts" }, ...given.flatMap(([name, ...values]) => [el("dt", {}, name), el("dd", {}, ...values)]));
}

function labels(all) {
  if (all.length === 0) return ["–"];
  const rest = all.slice(LABELS);
  return [all.slice(0, LABELS).join(", "),
    ...(rest.length ? [el("details", {}, el("summary", {}, `${rest.length} more`), rest.join(", "))] : [])];
}

function table(newest) {
  const heads = ["Version", "Learned", "Method", "Test score, 95 % interval", "Validation", "Size", ""];
  return el("table", { class: "stacked", role: "table", "aria-label": "Versions" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads.map((head) =>
      el("th", { role: "columnheader", scope: "col" }, head || el("span", { class: "hidden" }, "Action"))))),
    el("tbody", { role: "rowgroup" }, ...newest.map(line)));
}

// The roles keep the table a table on a narrow page, which draws its rows as blocks.
function line(version) {
  const served = version.served ? [" ", el("span", { class: "badge" }, "served")] : [];
  const head = el("th", { role: "rowheader", scope: "row" }, `${version.version}`, ...served);
  const cell = (name, ...content) => el("td", { role: "cell", "data-name": name }, ...content);
  if (version.state !== "ok") return el("tr", { role: "row" }, head, el("td", { role: "cell", colspan: 6, class: "problem" }, `The file is ${version.state}.`));
  const action = version.served || !administrator() ? null
    : el("button", { type: "button", "aria-label": `Restore version ${version.version}`, onclick: () => restore(version) }, "Restore");
  return el("tr", { role: "row" }, head, cell("Learned", date(version.created)), cell("Method", version.method),
    cell("Test", ...(version.test ? scores(version) : ["–"])), cell("Validation", score(version.dev)), cell("Size", bytes(version.bytes)),
    el("td", { role: "cell" }, action));
}

async function restore({ task, version }) {
  problem($("task-problem"), null);
  try {
    const made = await call(`/v1/tasks/${encodeURIComponent(task)}/restore`, { method: "POST", body: { version }, admin: true });
    await openTask(task);
    $("task-status").textContent = `Version ${version} is served again, as version ${made.version}.`;
    $("task-close").focus(); // the button that was pressed is gone
    await changed();
  } catch (error) {
    problem($("task-problem"), error);
  }
}

// The validation scores of the newest versions, epoch by epoch. Versions with another metric are left out.
function curves(intact) {
  const metric = intact[0]?.metric;
  const series = intact.filter((version) => version.metric === metric).slice(0, CURVES).map((version) => ({
    name: `Version ${version.version}`,
    points: (version.history || []).filter((entry) => typeof entry[metric] === "number").map((entry) => [entry.epoch, entry[metric]]),
  }));
  if (!series.some(({ points }) => points.length > 1)) return [];
  return [el("h3", {}, "Curves"), lineChart({ title: `Validation ${metric}`, x: "epoch", series, dots: true })];
}

// The answers of all versions to one text, side by side.
function comparison(name, intact) {
  const [text, second] = [el("input", { type: "text", id: "compare-text", required: true, autocomplete: "off" }),
    el("input", { type: "text", id: "compare-second", autocomplete: "off" })];
  const needs = intact.some((version) => version.pairs || version.kind === "span");
  text.value = $("text").value;
  second.value = $("second").value;
  const found = el("ul", { class: "answers", "aria-label": "Answers of the versions" });
  const form = el("form", { onsubmit: (event) => {
    event.preventDefault();
    compare(name, intact, text.value, second.value.trim(), found);
  } },
  el("label", { for: "compare-text" }, "Text"), text,
  ...(needs ? [el("label", { for: "compare-second" }, "Second text or question"), second] : []),
  el("button", { type: "submit" }, "Compare the answers"));
  return el("div", {}, el("h3", {}, "Answers of the versions"), form, found);
}

async function compare(name, intact, text, second, place) {
  problem($("task-problem"), null);
  const given = intact.map((version) => ({ version, ...inputFor(version, text, second) }));
  const asked = given.filter((row) => !row.missing);
  const requests = asked.map(({ version, input }) => ({ task: name, input, version: version.version }));
  try {
    const reply = requests.length ? await call("/v1/predict", { method: "POST", body: { requests } }) : { results: [] };
    const results = [...reply.results];
    place.replaceChildren(...given.map(({ version, input, missing }) =>
      answer(version, missing ? null : results.shift(), { input, missing }, `Version ${version.version}`)));
  } catch (error) {
    problem($("task-problem"), error);
  }
}
