// Line charts as SVG: a curve that grows while a task is learned, the curves of versions, the rate of the last minute.

import { el, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 170, 44, 10, 10, 24];

const plain = (value) => String(Number(value.toPrecision(3)));

// A few round values from `low` to `high`.
export function ticks(low, high, least = 0) {
  const rough = (high - low) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}

// From the lowest to the highest value. Equal values get some room, or noise would fill the picture.
function range(values, room) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const least = Math.max(1e-9, room * Math.max(Math.abs(low), Math.abs(high)));
  return high - low < least ? [(low + high - least) / 2, (low + high + least) / 2] : [low, high];
}

// From the first to the last count, with one count of room on both sides of a single one.
function span(counts) {
  const [first, last] = [Math.min(...counts), Math.max(...counts)];
  return first === last ? [first - 1, last + 1] : [first, last];
}

// A figure: `series` are [{name, points: [[x, y], …]}]; x counts steps or epochs. The description says in words what the lines show.
export function lineChart({ title, x, series, dots = false }) {
  const drawn = series.filter(({ points }) => points.length > 0);
  const all = drawn.flatMap(({ points }) => points);
  if (all.length === 0) return el("figure", { class: "chart" }, el("figcaption", {}, title), el("p", { class: "soft" }, "Nothing yet."));
  const [x0, x1] = span(all.map(([at]) => at));
  const [y0, y1] = range(all.map(([, value]) => value), 0.1);
  const px = (at) => LEFT + ((at - x0) / (x1 - x0)) * (WIDTH - LEFT - RIGHT);
  const py = (value) => HEIGHT - BOTTOM - ((value - y0) / (y1 - y0)) * (HEIGHT - TOP - BOTTOM);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": described(title, drawn) });
  for (const value of ticks(y0, y1)) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: py(value), y2: py(value) }),
      svg("text", { x: LEFT - 6, y: py(value) + 4, class: "right" }, plain(value)));
  }
  for (const at of ticks(x0, x1, 1)) picture.append(svg("text", { x: px(at), y: HEIGHT - 6, class: "middle" }, plain(at)));
  drawn.forEach(({ points }, index) => {
    const path = points.map(([at, value]) => `${px(at).toFixed(1)},${py(value).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { class: `line line-${index % 5}`, points: path }));
    if (dots || points.length === 1) {
      picture.append(...points.map(([at, value]) => svg("circle", { class: `dot line-${index % 5}`, cx: px(at), cy: py(value), r: 3 })));
    }
  });
  const legend = drawn.length > 1 ? [el("ul", { class: "legend" }, ...drawn.map(({ name }, index) => el("li", {}, swatch(index), name)))] : [];
  return el("figure", { class: "chart" }, el("figcaption", {}, `${title} `, el("span", { class: "soft" }, `by ${x}`)), picture, ...legend);
}

function swatch(index) {
  return svg("svg", { viewBox: "0 0 24 8", width: 24, height: 8, "aria-hidden": "true" },
    svg("polyline", { class: `line line-${index % 5}`, points: "0,4 24,4" }));
}

function described(title, series) {
  const each = series.map(({ name, points }) => {
    const values = points.map(([, value]) => value);
    return `${name}: ${plain(values[0])} at first, ${plain(values.at(-1))} now, ${plain(Math.min(...values))} to ${plain(Math.max(...values))}`;
  });
  return `${title}. ${each.join("; ")}.`;
}

// The last values as a small line without axes.
export function sparkline(values, slots, label) {
  const high = Math.max(...values, 1e-9);
  const points = values.map((value, at) => `${(300 * (slots - values.length + at)) / (slots - 1)},${(39 - (36 * value) / high).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 300 40", class: "spark", role: "img", "aria-label": label, preserveAspectRatio: "none" },
    svg("line", { class: "grid", x1: 0, x2: 300, y1: 39, y2: 39 }),
    svg("polyline", { class: "line line-0", points: points.join(" ") }));
}
