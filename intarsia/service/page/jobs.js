// The jobs of the service: their list, and the one whose events this page follows, with its curves.

import { call } from "./api.js";
import { lineChart } from "./chart.js";
import { $, date, el, number, problem, say, scores } from "./dom.js";
import { openTask } from "./versions.js";

const LISTED = 8;
const POINTS = 300; // of a curve on the screen
const ENDED = ["done", "failed", "cancelled"];

let changed = () => {}; // called when a task was added
let followed = null; // what is known of the job that this page follows

export async function startJobs(listener) {
  changed = listener;
  const jobs = await list();
  const active = jobs.find((job) => job.state === "running") || jobs.find((job) => job.state === "queued");
  if (active) follow(active);
}

async function list() {
  try {
    const { jobs } = await call("/v1/jobs");
    const had = document.activeElement?.dataset?.job; // drawing again must not lose the focus
    $("job-list").replaceChildren(...jobs.slice(0, LISTED).map(line));
    if (had) [...$("job-list").querySelectorAll("button")].find((button) => button.dataset.job === had)?.focus();
    return jobs;
  } catch (error) {
    $("jobs-status").textContent = error.message;
    return [];
  }
}

function line(job) {
  const result = job.error ? job.error : job.version ? `version ${job.version}` : "";
  return el("li", {},
    el("button", { type: "button", class: "link", "data-job": job.id, "aria-label": `Show the job of ${job.task}`, onclick: () => follow(job) }, job.task), " ",
    el("span", { class: `state ${job.state}` }, job.state), " ",
    el("span", { class: "soft" }, date(job.created)), result && ENDED.includes(job.state) ? el("p", { class: job.error ? "problem" : "soft" }, result) : null);
}

// Show the events of a job from its first on. An interruption continues by itself: the browser asks again.
export function follow(job) {
  followed?.events.close();
  const events = new EventSource(`/v1/jobs/${encodeURIComponent(job.id)}/events`);
  followed = { job, events, loss: [], validation: [], metric: "", drawing: false, last: null, state: job.state };
  const own = followed;
  const on = (name, act) => events.addEventListener(name, (event) => own === followed && act(JSON.parse(event.data)));
  on("state", ({ state }) => { own.state = state; draw(own); list(); });
  on("progress", (event) => progress(own, event));
  for (const state of ENDED) on(state, (event) => end(own, state, event));
  events.addEventListener("error", () => {
    if (events.readyState === EventSource.CLOSED && own === followed) $("jobs-status").textContent = "The events of the job cannot be followed now. Choose it in the list to try again.";
  });
  draw(own);
  list();
}

function progress(own, event) {
  own.state = "running";
  own.last = event;
  own.metric = event.metric;
  if (event.reading === null || event.reading === undefined) own.loss.push([event.step, event.loss]);
  const before = own.validation.at(-1);
  if (typeof event.validation === "number" && (!before || before[1] !== event.validation)) own.validation.push([event.step, event.validation]);
  if (own.drawing) return;
  own.drawing = true; // many events arrive at once: draw them together
  setTimeout(() => {
    own.drawing = false;
    if (own === followed && !ENDED.includes(own.state)) draw(own);
  }, 100);
}

async function end(own, state, { message, version }) {
  own.events.close(); // else the browser asks again for events that never come
  Object.assign(own, { state, message, version });
  draw(own);
  if (state === "done") {
    await changed();
    await exactScores(own);
  }
  await list();
}

// The scores of every epoch, as the version stores them.
async function exactScores(own) {
  try {
    const { versions } = await call(`/v1/tasks/${encodeURIComponent(own.job.task)}/versions`);
    const made = versions.find(({ version }) => version === own.version);
    own.held = made !== undefined && !made.served;
    own.score = made && scores(made);
    const points = (made?.history || []).filter((entry) => typeof entry[made.metric] === "number").map((entry) => [entry.step, entry[made.metric]]);
    if (own !== followed) return;
    if (points.length > 0) Object.assign(own, { validation: points, metric: made.metric });
    draw(own);
  } catch {
    // the curve of the events stays
  }
}

const thinned = (points) => {
  const every = Math.ceil(points.length / POINTS);
  return points.filter((_, at) => at % every === 0 || at === points.length - 1);
};

function draw(own) {
  const { job, state, last } = own;
  const active = !ENDED.includes(state);
  say($("jobs-status"), said(own));
  const bar = el("progress", { max: 1, "aria-label": `Progress of ${job.task}` });
  if (last) bar.value = last.reading ?? last.step / Math.max(1, last.steps);
  const had = document.activeElement?.id === "cancel"; // drawing again must not lose the focus
  const cancel = el("button", { type: "button", id: "cancel", onclick: () => stop(own) }, `Cancel ${job.task}`);
  const open = el("button", { type: "button", onclick: () => openTask(job.task) }, `Open ${job.task}`);
  const problemLine = el("p", { class: "problem", role: "alert", id: "job-problem", hidden: true });
  problem(problemLine, own.problem);
  $("followed").replaceChildren(
    el("h4", {}, job.task),
    ...(active ? [el("div", { class: "progress" }, bar, el("span", { class: "soft" }, remaining(last)))] : []),
    ...(own.loss.length ? [lineChart({ title: "Loss", x: "step", series: [{ name: "Loss", points: thinned(own.loss) }] })] : []),
    ...(own.validation.length ? [lineChart({ title: `Validation ${own.metric}`, x: "step", series: [{ name: "Validation", points: own.validation }], dots: true })] : []),
    ...(own.score ? [el("p", {}, "Score: ", ...own.score)] : []),
    problemLine,
    ...(active ? [cancel] : state === "done" ? [open] : []));
  if (had && active) cancel.focus();
}

function said({ job, state, message, version, held }) {
  if (state === "queued") return `${job.task} waits for its turn.`;
  if (state === "running") return `${job.task} is being learned.`;
  if (state === "done") return `${job.task} is learned: version ${version}.${held ? " Another version is served: open the task to compare them." : ""}`;
  if (state === "cancelled") return `${job.task} was cancelled.`;
  return `${job.task} failed: ${message}`;
}

function remaining(last) {
  if (!last) return "";
  const left = last.seconds_left >= 90 ? `${number(last.seconds_left / 60)} minutes` : `${number(last.seconds_left)} s`;
  return last.reading === null || last.reading === undefined
    ? `epoch ${last.epoch} of ${last.epochs}, step ${number(last.step)} of ${number(last.steps)}, about ${left} left`
    : `the base reads the texts, about ${left} left`;
}

async function stop(own) {
  try {
    await call(`/v1/jobs/${encodeURIComponent(own.job.id)}/cancel`, { method: "POST", admin: true });
  } catch (error) {
    own.problem = error;
    draw(own);
  }
}
