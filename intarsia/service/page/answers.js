// The answer of one task, drawn: labels with probabilities, numbers, tags and spans in their text.

import { el, kindName, number, percent } from "./dom.js";

const SHOWN = 5; // labels that show at once

// A card for a result. `input` is what the task was asked: spans are drawn in it. `missing` says why it was not asked.
export function answer(task, result, { input, missing }, name = task.task) {
  const body = missing ? [el("p", { class: "soft" }, missing)]
    : result.error ? [el("p", { class: "problem" }, sentence(result.error.message))]
    : (DRAW[result.kind] || (() => []))(result, input);
  const version = result?.version && name === task.task ? ` · version ${result.version}` : ""; // else the name says it
  return el("li", { class: "card" },
    el("h3", {}, name),
    el("p", { class: "soft help" }, kindName(task.kind) + version),
    ...body);
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const DRAW = {
  label: (result) => [el("p", { class: "said" }, result.label), ...bars(result.probabilities, [result.label])],
  labels: (result) => [
    el("p", { class: "said" }, result.labels.length ? result.labels.join(", ") : "No label applies"),
    ...bars(result.probabilities, result.labels)],
  score: (result) => [el("p", { class: "said" }, number(result.score, 3))],
  tags: (result) => [tagged(result)],
  span: (result, input) => [...spanned(result, input), ...bars(ranked(result.candidates), [result.answer])],
  words: (result) => result.masks.flatMap((mask, at) => [
    ...(result.masks.length > 1 ? [el("h4", {}, `Mask ${at + 1}`)] : []),
    ...bars(ranked(mask.words.map(({ word, probability }) => ({ text: word, probability }))), [])]),
};

const ranked = (found) => Object.fromEntries((found || []).map(({ text, probability }) => [text || "no answer", probability]));

// Probabilities as bars, the highest first; the rest opens.
function bars(probabilities, chosen) {
  const sorted = Object.entries(probabilities || {}).sort((a, b) => b[1] - a[1]);
  if (sorted.length === 0) return [];
  const list = (rows) => el("ul", { class: "bars" }, ...rows.map(([label, p]) => bar(label, p, chosen.includes(label))));
  const rest = sorted.slice(SHOWN);
  return [
    list(sorted.slice(0, SHOWN)),
    ...(rest.length ? [el("details", {}, el("summary", {}, `${rest.length} more`), list(rest))] : [])];
}

function bar(label, p, chosen) {
  const fill = el("span", { class: "fill" });
  fill.style.width = `${(100 * Math.min(1, Math.max(0, p))).toFixed(1)}%`;
  return el("li", chosen ? { class: "chosen" } : {},
    el("span", { class: "name", title: label }, label),
    el("span", { class: "track", "aria-hidden": "true" }, fill),
    el("span", { class: "value" }, percent(p)));
}

// The words of the text; entities are marked and carry their type.
function tagged({ tags, entities }) {
  const line = el("p", { class: "tagged" });
  const runs = entities && entities.length ? entities : [];
  let at = 0;
  while (at < tags.length) {
    const entity = runs.find(({ start }) => start === at);
    const end = entity ? Math.max(entity.end, at + 1) : at + 1;
    const words = tags.slice(at, end);
    const type = entity ? entity.type : words[0].tag;
    const text = words.map(({ word }) => word).join(" ");
    const lowest = Math.min(...words.map(({ probability }) => probability));
    if (entity || !(entities || type === "O")) line.append(mark(text, type, lowest));
    else line.append(text);
    line.append(" ");
    at = end;
  }
  return el("div", {}, line, everyWord(tags));
}

const mark = (text, type, p) => el("mark", { title: `${type}, ${percent(p)}` }, `${text}\u00a0`, el("span", { class: "tag" }, type));

// The tag and the probability of each word, for those who want to know, and for screen readers.
function everyWord(tags) {
  return el("details", {}, el("summary", {}, "Every word"),
    el("ul", { class: "words" }, ...tags.map(({ word, tag, probability }) =>
      el("li", {}, word, " ", el("span", { class: "soft" }, `${tag} ${percent(probability)}`)))));
}

// The answer, marked in its context. The API counts characters; strings here count UTF-16 units.
function spanned({ answer: said, start }, input) {
  if (!said) return [el("p", { class: "said" }, "The text holds no answer")];
  const context = input && input.context;
  if (!context || start === undefined) return [el("p", { class: "said" }, said)];
  const characters = Array.from(context);
  const end = start + Array.from(said).length;
  const part = (from, to) => characters.slice(from, to).join("");
  return [el("p", { class: "said" }, said),
    el("p", { class: "tagged" }, part(0, start), el("mark", {}, part(start, end)), part(end))];
}
