// The tasks that were chosen to answer: name -> what the list says about the task.

import { $, el } from "./dom.js";

const chosen = new Map();
const changed = new EventTarget();

export const isChosen = (name) => chosen.has(name);
export const chosenTasks = () => [...chosen.values()];
export const onChange = (listener) => changed.addEventListener("change", listener);

export function choose(task, wanted) {
  if (wanted) chosen.set(task.task, task);
  else chosen.delete(task.task);
  const which = wanted ? "chosen" : chosen.size === 0 ? "all" : null;
  if (which) document.querySelector(`input[name=which][value=${which}]`).checked = true;
  draw();
  changed.dispatchEvent(new Event("change"));
}

function draw() {
  $("chosen-count").textContent = String(chosen.size);
  $("chosen").replaceChildren(...chosenTasks().map((task) => el("li", {},
    el("button", { type: "button", "aria-label": `Remove ${task.task}`, onclick: () => drop(task) }, task.task, " ×"))));
}

// Remove a chip. The focus goes to its neighbour: the button with the focus is gone.
function drop(task) {
  const at = [...chosen.keys()].indexOf(task.task);
  choose(task, false);
  const left = $("chosen").querySelectorAll("button");
  (left[Math.min(at, left.length - 1)] || document.querySelector("input[name=which]:checked")).focus();
}
