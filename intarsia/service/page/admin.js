// Learning a task from a file: the preview that the service makes of it, the columns, and the start of the job.

import { ApiError, call, setAdminKey, setAdministrator } from "./api.js";
import { $, bytes, el, kindName, number, plural, problem } from "./dom.js";
import { follow, startJobs } from "./jobs.js";

const MEDIA = {
  csv: "text/csv", tsv: "text/tab-separated-values", jsonl: "application/x-ndjson", ndjson: "application/x-ndjson",
  parquet: "application/vnd.apache.parquet", txt: "text/plain",
};
const ROLES = ["text", "pair", "label"];
const FIELDS = [...ROLES.map((role) => `column-${role}`), "kind", "drop-missing"]; // that change what the file says
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
  $("key-given").hidden = !info.keys.user;
  $("key").addEventListener("input", () => setAdminKey($("key").value));
  $("key").addEventListener("change", () => file && preview(chosen()));
  $("file").addEventListener("change", chooseFile);
  for (const field of FIELDS) $(field).addEventListener("change", () => preview(chosen()));
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
  const has = file.name.includes(".") ? `ends in .${ending()}` : "has no ending";
  const bad = !MEDIA[ending()] ? `${file.name} ${has}. Expected one of: .${Object.keys(MEDIA).join(", .")}. Save the data as CSV.`
    : file.size > largest ? `${file.name} has ${bytes(file.size)}. This service takes at most ${bytes(largest)}. Choose a smaller file, or start the service with a larger --job-bytes.`
    : file.size === 0 ? `${file.name} is empty. Choose another file.` : "";
  if (bad) {
    problem($("preview-problem"), new ApiError(bad));
    file = null;
    return;
  }
  const name = file.name.replace(/\.[^.]*$/, "").toLowerCase().replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+/, "").slice(0, 64).replace(/[^a-z0-9]+$/, "");
  $("name").value = name;
  $("drop-missing").checked = false;
  $("kind").value = "";
  preview({});
}

// What the fields say about the file; what they leave open, the service finds.
function chosen() {
  const given = [...ROLES.map((role) => [role, $(`column-${role}`).value]), ["kind", $("kind").value]];
  const dropped = $("drop-missing").checked ? { drop_missing: "true" } : {};
  return { ...Object.fromEntries(given.filter(([, value]) => value)), ...dropped };
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
  problem($("preview-problem"), found.problem ? new ApiError(plain(found)) : null);
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

// What the library calls its options, and what the page calls its fields.
const WORDS = [
  [/Name (?:one|it|another|the right column) with (text|label)=/, "Choose the $1 column below"],
  ["or set kind='score' for numbers, or kind='label' if they are classes", "or choose below what the task predicts"],
  ["(drop_missing=True)", "(tick the box below)"],
  [", or name its encoding (--encoding)", ""],
];

// The problem in the page's words: with the name of the person's file, and the fields of the page instead of the
// options of the library. The table below shows the columns that were found.
function plain({ problem: said, columns }) {
  const named = said.replaceAll(`data.${ending()}`, file.name);
  const [, missing] = named.match(/: no (text|label) column\. /) || [];
  if (!missing) return WORDS.reduce((text, [option, field]) => text.replace(option, field), named);
  if (columns.length < 2) return `${file.name} has only the column “${columns[0]}”. A task needs a column of texts and a column of labels.`;
  return `${file.name}: no column has a name that stands for the ${missing}s. Choose the ${missing} column below.`;
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
  const options = Object.entries({ ...given, ...chosen() }).filter(([, value]) => value !== "");
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
