// Learning a task from a file: the preview that the service makes of it, the columns, and the start of the job.

import { ApiError, call, setAdminKey, setAdministrator } from "./api.js";
import { $, el, kindName, number, plural, problem } from "./dom.js";
import { follow, startJobs } from "./jobs.js";

const MEDIA = {
  csv: "text/csv", tsv: "text/tab-separated-values", jsonl: "application/x-ndjson", ndjson: "application/x-ndjson",
  parquet: "application/vnd.apache.parquet", txt: "text/plain",
};
const ROLES = ["text", "pair", "label"];
const LABELS = 12; // that the summary names

let file = null;
let largest = Infinity;
let running = null; // the preview that is under way

export function startAdmin(info, changed) {
  const open = info.keys.admin || !info.keys.user;
  const off = !open ? "The service has no administrator's key (INTARSIA_ADMIN_KEY), so this page cannot change its bank."
    : !info.limits.jobs ? "Jobs are switched off. Start the service without --no-jobs to learn tasks here." : "";
  setAdministrator(open, info.keys.admin && !info.keys.user);
  $("learn-off").hidden = !off;
  $("learn-off").textContent = off;
  $("learn-on").hidden = off !== "";
  if (off) return;
  largest = info.limits.job_bytes;
  $("key-row").hidden = !info.keys.admin;
  $("key").addEventListener("input", () => setAdminKey($("key").value));
  $("key").addEventListener("change", () => file && preview(chosenColumns()));
  $("file").addEventListener("change", chooseFile);
  for (const role of ROLES) $(`column-${role}`).addEventListener("change", () => preview(chosenColumns()));
  $("drop-missing").addEventListener("change", () => preview(chosenColumns()));
  $("learn-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (file !== null && !$("preview").hidden) learn();
  });
  startJobs(changed);
}

const ending = () => file.name.toLowerCase().split(".").at(-1);

function chooseFile() {
  file = $("file").files[0] || null;
  problem($("preview-problem"), null);
  problem($("learn-problem"), null);
  $("preview").hidden = true;
  $("preview-status").textContent = "";
  if (file === null) return;
  const bad = !MEDIA[ending()] ? `The file ends in .${ending()}. Expected one of: .${Object.keys(MEDIA).join(", .")}.`
    : file.size > largest ? `The file has ${number(file.size)} bytes; this service takes at most ${number(largest)}.`
    : file.size === 0 ? "The file is empty." : "";
  if (bad) {
    problem($("preview-problem"), new ApiError(bad));
    file = null;
    return;
  }
  const name = file.name.replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 64);
  $("name").value = name;
  $("drop-missing").checked = false;
  preview({});
}

// The columns that the selects name; what they leave open, the service finds.
function chosenColumns() {
  const chosen = ROLES.map((role) => [role, $(`column-${role}`).value]).filter(([, name]) => name);
  return { ...Object.fromEntries(chosen), ...($("drop-missing").checked ? { drop_missing: "true" } : {}) };
}

const path = (route, options) => `${route}?${new URLSearchParams(options)}`;

async function preview(columns) {
  running?.abort();
  running = new AbortController();
  $("preview-status").textContent = "Reading the file …";
  try {
    const found = await call(path("/v1/jobs/preview", { task: "preview", ...columns }),
      { method: "POST", body: file, media: MEDIA[ending()], admin: true, signal: running.signal });
    show(found, columns);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("preview-status").textContent = "";
    problem($("preview-problem"), error);
  }
}

function show(found, asked) {
  $("preview-status").textContent = "";
  problem($("preview-problem"), found.problem ? new ApiError(plain(found, asked)) : null);
  $("preview").hidden = found.columns.length === 0;
  $("preview-table").replaceChildren(
    el("thead", {}, el("tr", {}, ...found.columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...found.examples.map((row) => el("tr", {}, ...found.columns.map((name) => el("td", {}, row[name] ?? ""))))));
  for (const role of ROLES) {
    const none = role === "pair" ? "none" : "not chosen";
    $(`column-${role}`).replaceChildren(el("option", { value: "" }, none), ...found.columns.map((name) => el("option", { value: name }, name)));
    $(`column-${role}`).value = asked[role] || found[role] || "";
  }
  $("found").replaceChildren(...(found.problem ? [] : summary(found)));
  $("learn-button").disabled = Boolean(found.problem);
}

// The problem, with the name that the person knows the file by. Without columns, the way on is to choose them.
function plain({ problem: said, columns }, asked) {
  const named = said.replaceAll(`data.${ending()}`, file.name);
  return columns.length > 0 && !(asked.text && asked.label) ? `${named} Choose the columns below.` : named;
}

function summary({ kind, labels, distinct, rows, notes }) {
  const parts = ["train", "dev", "test"].map((part) => `${number(rows[part])} ${part}`).join(", ");
  const shown = Object.entries(labels || {}).slice(0, LABELS).map(([label, count]) => `${label} (${number(count)})`).join(", ");
  const rest = (distinct || 0) - LABELS;
  return [
    el("p", {}, `Predicts ${kind === "score" ? "a number" : kindName(kind)}. Rows: ${parts}.`),
    ...(labels ? [el("p", {}, `${plural(distinct, "label")}: ${shown}${rest > 0 ? ` and ${number(rest)} more` : ""}.`)] : []),
    ...(notes || []).map((note) => el("p", { class: "note" }, `Note: ${note}`))];
}

async function learn() {
  problem($("learn-problem"), null);
  const given = { task: $("name").value.trim(), method: $("method").value.trim(), epochs: $("epochs").value };
  const options = Object.entries({ ...given, ...chosenColumns() }).filter(([, value]) => value !== "");
  $("learn-button").setAttribute("aria-disabled", "true");
  try {
    const job = await call(path("/v1/jobs", options), { method: "POST", body: file, media: MEDIA[ending()], admin: true });
    follow(job);
    $("jobs").scrollIntoView({ block: "nearest" });
  } catch (error) {
    problem($("learn-problem"), error);
  } finally {
    $("learn-button").removeAttribute("aria-disabled");
  }
}
