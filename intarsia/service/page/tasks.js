// The list of tasks, page by page through the API's cursor: its length does not matter.

import { call } from "./api.js";
import { choose, isChosen, onChange } from "./chosen.js";
import { $, bytes, el, number, percent, plural, problem, scores, taskKind } from "./dom.js";
import { openTask } from "./versions.js";

const PAGE = 25;
const LABELS = 4; // that a row shows
const TYPING = 150; // milliseconds without a key, before the search asks

let cursors = [""]; // of this page and all before it
let running = null;

export function prepareTasks() {
  let timer;
  const restart = () => {
    cursors = [""];
    return showTasks();
  };
  $("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(restart, TYPING);
  });
  $("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    restart();
  });
  $("next").addEventListener("click", () => turn(true));
  $("previous").addEventListener("click", () => turn(false));
  onChange(() => {
    for (const box of $("task-table").querySelectorAll("input")) box.checked = isChosen(box.value);
  });
}

async function turn(forward) {
  if (forward) cursors.push($("next").value);
  else cursors.pop();
  await showTasks();
  const asked = forward ? $("next") : $("previous");
  if (asked.disabled) (forward ? $("previous") : $("next")).focus(); // a disabled button loses the focus
}

export async function showTasks() {
  running?.abort();
  running = new AbortController();
  const prefix = $("search").value.trim();
  const asked = new URLSearchParams({ prefix, cursor: cursors.at(-1), limit: PAGE });
  try {
    const page = await call(`/v1/tasks?${asked}`, { signal: running.signal });
    problem($("tasks-problem"), null);
    draw(page, prefix);
  } catch (error) {
    if (error.name === "AbortError") return;
    $("tasks-status").textContent = ""; // it counts the tasks of an older list
    problem($("tasks-problem"), error);
  }
}

function draw({ tasks, total, next_cursor: following }, prefix) {
  const first = (cursors.length - 1) * PAGE;
  $("task-table").hidden = tasks.length === 0;
  const focused = $("task-table").contains(document.activeElement) ? document.activeElement : null;
  const rows = tasks.map(row);
  $("task-table").tBodies[0].replaceChildren(...rows);
  if (focused) { // drawing again must not lose the focus
    const same = rows.find((made) => made.dataset.task === focused.closest("tr").dataset.task);
    same?.querySelector(focused.tagName)?.focus();
  }
  $("next").value = following || "";
  $("next").disabled = !following;
  $("previous").disabled = cursors.length === 1;
  document.querySelector(".pages").hidden = !following && cursors.length === 1;
  $("tasks-status").textContent = total === 0
    ? (prefix ? `No task has a name that begins with “${prefix}”.` : "The bank has no tasks yet.")
    : following || first ? `Tasks ${number(first + 1)} to ${number(first + tasks.length)} of ${number(total)}.`
    : `${plural(total, "task")}.`;
}

function row(task) {
  const name = task.task;
  const open = el("button", { type: "button", class: "link", onclick: () => openTask(name) }, name);
  if (task.state !== "ok") {
    return el("tr", { role: "row", "data-task": name }, cell("Ask"), head(open),
      el("td", { role: "cell", colspan: 6, class: "problem" }, `The file of version ${task.version} is ${task.state}. Open the task to restore another version.`));
  }
  const box = el("input", {
    type: "checkbox", value: name, checked: isChosen(name), "aria-label": `Ask ${name}`,
    onchange: (event) => choose(task, event.target.checked),
  });
  return el("tr", { role: "row", "data-task": name },
    cell("Ask", box),
    head(open),
    cell("Kind", taskKind(task)),
    cell("Labels", labels(task.labels || [])),
    cell("Score", ...scores(task)),
    cell("Size", bytes(task.bytes), task.share ? el("span", { class: "soft" }, ` ${percent(task.share)}`) : null),
    cell("Version", String(task.version)),
    cell("Resident", task.resident ? el("span", { class: "on" }, "yes") : "no"));
}

const head = (...content) => el("th", { role: "rowheader", scope: "row" }, ...content);
const cell = (name, ...content) => el("td", { role: "cell", "data-name": name }, ...content);

function labels(all) {
  if (all.length === 0) return "–";
  const rest = all.length - LABELS;
  const shown = all.slice(0, LABELS).join(", ");
  return el("span", { title: all.slice(0, 50).join(", ") }, rest > 0 ? `${shown} and ${rest} more` : shown);
}
