// One text for all tasks, or for chosen ones, in one request.

import { answer } from "./answers.js";
import { ApiError, call } from "./api.js";
import { chosenTasks } from "./chosen.js";
import { $, milliseconds, number, plural, problem } from "./dom.js";

let most = 1024; // rows of a request; the service says its own limit
let answered = () => {}; // called after the answers: tasks may have become resident

export function startAsk(info) {
  most = info.limits.rows;
}

export function prepareAsk(listener) {
  answered = listener;
  $("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("ask-form").requestSubmit();
  });
}

// What to send for a task: its input, or why it cannot answer.
export function inputFor(task, text, second) {
  if (task.kind === "span") {
    return second ? { input: { question: second, context: text } } : { missing: "Type a question in the second field." };
  }
  if (task.pairs) return second ? { input: [text, second] } : { missing: "Type the other text in the second field." };
  return { input: text };
}

async function wantedTasks() {
  if (document.querySelector("input[name=which]:checked").value === "chosen") {
    const tasks = chosenTasks();
    if (tasks.length === 0) throw new ApiError("No task is chosen. Tick tasks in the list below, or ask all tasks.");
    if (tasks.length > most) throw new ApiError(`A request takes ${number(most)} tasks at most; ${tasks.length} are chosen.`);
    return { tasks, total: tasks.length };
  }
  const tasks = [];
  let cursor = "", total = 0;
  do {
    const page = await call(`/v1/tasks?limit=1000${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    tasks.push(...page.tasks.filter((task) => task.state === "ok"));
    [cursor, total] = [page.next_cursor, page.total];
  } while (cursor && tasks.length < most);
  return { tasks: tasks.slice(0, most), total };
}

async function send() {
  const [text, second] = [$("text").value, $("second").value.trim()];
  problem($("ask-problem"), null);
  $("ask-status").textContent = "Asking …";
  $("ask-button").setAttribute("aria-disabled", "true");
  try {
    const { tasks, total } = await wantedTasks();
    const given = tasks.map((task) => ({ task, ...inputFor(task, text, second) }));
    const rows = given.filter((row) => !row.missing);
    const reply = rows.length === 0 ? null
      : await call("/v1/predict", { method: "POST", body: { requests: rows.map((row) => ({ task: row.task.task, input: row.input })) } });
    const results = reply ? [...reply.results] : [];
    const cards = given.map((row) => answer(row.task, row.missing ? null : results.shift(), row));
    $("answers").replaceChildren(...cards);
    $("ask-status").textContent = summary(reply, rows.length, given.length - rows.length, tasks.length, total);
    answered();
  } catch (error) {
    $("ask-status").textContent = "";
    problem($("ask-problem"), error);
  } finally {
    $("ask-button").removeAttribute("aria-disabled");
  }
}

function summary(reply, rows, unasked, sent, total) {
  if (total === 0) return `The bank has no tasks yet.${$("learn-on").hidden ? "" : " Learn one below."}`;
  const parts = [`${plural(rows, "task")} answered in one request`];
  if (reply) {
    const { usage, timing_ms: times } = reply;
    parts.push(plural(usage.tokens, "token"), `${milliseconds(times.total)} (queue ${milliseconds(times.queue)}, base and inlays ${milliseconds(times.inference)})`);
    if (usage.truncated) parts.push(`the text was cut for ${plural(usage.truncated, "task")}`);
  }
  if (unasked) parts.push(`${plural(unasked, "task")} ${unasked === 1 ? "needs" : "need"} a second text`);
  if (sent < total) parts.push(`the first ${number(sent)} of ${number(total)} tasks`);
  return `${parts.join(" · ")}.`;
}
