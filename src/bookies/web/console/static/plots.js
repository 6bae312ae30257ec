// Plots of samples: one line each, with its last and its largest value, and a cursor for the time under the pointer.

import { clock, h, quantity, svg } from "./dom.js";

const WIDTH = 320;
const HEIGHT = 72;

// Returns the path of the values, with gaps where there are none.
function line(values, times, highest) {
  const [first, last] = [times[0], times[times.length - 1]];
  const span = Math.max(1, last - first);
  let path = "";
  let pen = false;
  values.forEach((value, index) => {
    if (value === null) {
      pen = false;
      return;
    }
    const x = (WIDTH * (times[index] - first)) / span;
    const y = HEIGHT - 4 - ((HEIGHT - 10) * value) / highest;
    path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = true;
  });
  return path;
}

const latest = (values) => values.findLast((value) => value !== null) ?? null;

function plot(series, times, { small = false } = {}) {
  const { title, unit, values } = series;
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known);
  const highest = unit === "share" ? Math.max(1, most) : most > 0 ? most * 1.05 : 1;
  const summary = `${title}: now ${quantity(latest(values), unit)}, at most ${quantity(most, unit)}`;
  const path = line(values, times, highest);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: HEIGHT - 4, y2: HEIGHT - 4 }),
    svg("path", { class: "line", d: path || "M0 0" }));
  const read = (event, text) => (event.currentTarget.closest("figure").querySelector(".reading").textContent = text);
  drawing.onpointermove = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = times[0] + ((event.clientX - box.left) / box.width) * (times[times.length - 1] - times[0]);
    const index = times.reduce((best, time, i) => (Math.abs(time - at) < Math.abs(times[best] - at) ? i : best), 0);
    read(event, `${clock(times[index])}  ${quantity(values[index], unit)}`);
  };
  drawing.onpointerleave = (event) => read(event, "");
  return h("figure", { class: small ? "plot small" : "plot" },
    h("figcaption", {}, h("span", {}, title), h("strong", {}, quantity(latest(values), unit))),
    drawing,
    h("p", { class: "range" }, h("span", {}, small ? "" : clock(times[0])), h("span", { class: "reading" }), h("span", {}, `at most ${quantity(most, unit)}`)));
}

// Returns the plots of some series, or of all of them.
export function plots(samples, names = null, options = {}) {
  const { at_ms: times, series } = samples;
  const wanted = series.filter((row) => names === null || names.includes(row.name));
  if (times.length < 2 || !wanted.length) return h("p", { class: "empty" }, "No samples yet: the process takes one every 10 s.");
  return h("div", { class: "plots" }, wanted.map((row) => plot(row, times, options)));
}
