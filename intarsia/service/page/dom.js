// Elements from data. Text is always set as text: data never becomes markup.

export const $ = (id) => document.getElementById(id);

// An element. `given` sets attributes; `on…` adds listeners; children are elements or texts.
export function el(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else if (value !== undefined && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Set the text of a live region. The same text again is not spoken again.
export function say(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// Show a problem in plain words, or remove it.
export function problem(place, error) {
  place.hidden = !error;
  say(place, error ? error.message || String(error) : "");
}

export const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export const score = (value) => (value === null || value === undefined ? "–" : number(value, 3));

export const percent = (value) => `${number(100 * value, value < 0.0995 ? 1 : 0)} %`;

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) [value, at] = [value / 1000, at + 1];
  return `${number(value, at === 0 || value >= 100 ? 0 : 1)} ${units[at]}`;
}

export function milliseconds(value) {
  return value >= 1000 ? `${number(value / 1000, 1)} s` : `${number(value, value < 10 ? 1 : 0)} ms`;
}

export function date(text) {
  const when = new Date(text);
  return Number.isNaN(when.getTime()) ? "–" : when.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

const KINDS = {
  label: "one label", labels: "several labels", score: "number", tags: "tags of words", span: "answer in a text",
  words: "missing words",
};
export const kindName = (kind) => KINDS[kind] || kind || "–";
export const taskKind = ({ kind, pairs }) => (pairs && kind !== "span" ? `${kindName(kind)}, for two texts` : kindName(kind));

// The score on the test part with its interval, or on the development part without.
export function scores({ metric, dev, test }) {
  if (test && test.value !== null && test.value !== undefined) {
    const interval = test.low === null || test.low === undefined ? [] : [" ", el("span", { class: "whole" }, `[${score(test.low)}, ${score(test.high)}]`)];
    return [score(test.value), el("span", { class: "soft" }, ...interval, " ", el("span", { class: "whole" }, metric))];
  }
  return dev === null || dev === undefined ? ["–"] : [score(dev), el("span", { class: "soft" }, ` ${metric} (validation)`)];
}
