// Elements, tables and figures. Text is always a text node, never HTML. `morph` keeps what the user is doing: focus,
// input and open parts survive a refresh.

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onpointermove", "onpointerleave"];
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false && child !== "") element.append(child);
  }
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function morph(into, fresh) {
  const next = [...fresh.childNodes];
  next.forEach((node, index) => {
    const old = into.childNodes[index];
    if (!old) into.append(node);
    else if (old.nodeName !== node.nodeName || old.dataset?.key !== node.dataset?.key) old.replaceWith(node);
    else patch(old, node);
  });
  while (into.childNodes.length > next.length) into.lastChild.remove();
}

function patch(old, node) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const name of old.getAttributeNames()) {
    if (!node.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const name of HANDLERS) old[name] = node[name];
  morph(old, node);
}

// -- text --------------------------------------------------------------------------------------------------------

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (value) => number.format(value);
export const plural = (value, one, several = `${one}s`) => `${count(value)} ${value === 1 ? one : several}`;

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(bytes) >= 1024 && power < units.length - 1) [bytes, power] = [bytes / 1024, power + 1];
  return `${power && bytes < 100 ? bytes.toFixed(1) : count(bytes)} ${units[power]}`;
}

export function quantity(value, unit) {
  if (value === null || value === undefined) return "none";
  if (unit === "B") return size(value);
  if (unit === "B/s") return `${size(value)}/s`;
  if (unit === "share") return `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
  const text = value >= 100 || Number.isInteger(value) ? count(value) : value.toPrecision(2);
  return unit === "1/s" ? `${text}/s` : `${text}${unit ? ` ${unit}` : ""}`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const moment = (ms) => new Date(ms).toLocaleString("sv-SE");

export function since(ms) {
  return h("time", { datetime: new Date(ms).toISOString(), title: moment(ms) }, `${duration((Date.now() - ms) / 1000)} ago`);
}

// Text with `commands` in backticks, as the server writes them.
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}

// The next step of an error: a command, or words.
export const nextStep = (text) => (/^bk /.test(text) ? h("code", {}, text) : prose(text));

// -- parts -------------------------------------------------------------------------------------------------------

const MARKS = { ok: "●", warn: "▲", bad: "■", unknown: "○" };
const LEVEL = { writable: "ok", stored: "ok", CLOSED: "ok", OPEN: "ok", done: "ok", running: "ok", "read-only": "warn",
  IN_RECOVERY: "warn", cancelled: "warn", cancelling: "warn", down: "bad", failed: "bad", damaged: "bad", missing: "bad" };

// State as a shape and a word, so that it does not depend on colour.
export function state(word, level = LEVEL[word] ?? "unknown") {
  return h("span", { class: `state ${level}` }, h("span", { "aria-hidden": "true" }, MARKS[level]), `\u00a0${word.toLowerCase().replace("_", " ")}`);
}

export function bar(used, text) {
  const level = used >= 0.95 ? "bad" : used >= 0.9 ? "warn" : "ok";
  return h("span", { class: "bar" },
    svg("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", class: level, "aria-hidden": "true" },
      svg("rect", { class: "track", width: 100, height: 6, rx: 3 }),
      svg("rect", { class: "level", width: Math.max(1, 100 * used).toFixed(1), height: 6, rx: 3 })),
    ` ${text}`);
}

// `columns`: [title, cell of a row, class]. `empty`: the sentence for no rows.
export function table(columns, rows, { empty, caption } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty ?? "None.");
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption ?? "Table" },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => h("td", { class: kind }, cell(row))))))));
}

const isEmpty = (value) => value === null || value === undefined || value === "" || (Array.isArray(value) && value.every(isEmpty));

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => !isEmpty(value))
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function failure(problem) {
  return h("p", { class: "failure", role: "status" }, state("unknown"), ": ", prose(problem.message), ". ",
    problem.next ? ["Next: ", nextStep(problem.next), "."] : "");
}

// Shows a part of a page that may have failed.
export const part = (result, view) => (result.problem ? failure(result.problem) : view(result.value));

export function section(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

// Lines of a command's report: text, and tables as {headers, rows}.
export function reportText(lines) {
  const texts = lines.map((line) => typeof line === "string" ? line : [line.headers, ...line.rows].map((row) => row.join("   ")).join("\n"));
  return h("pre", { class: "report", tabindex: 0 }, texts.join("\n"));
}
