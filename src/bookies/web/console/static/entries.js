// Entries of a ledger as text, JSON or hexadecimal, page by page, and a live tail.

import { API, call, get } from "./api.js";
import { count, h, plural, size, state } from "./dom.js";
import { choice, filterForm, target } from "./paging.js";

const PAGE = 20;
const SHOWN_MAX = 2000; // characters of an entry
const TAIL_MAX = 300; // entries that a tail shows
const TAIL_STEP = 100; // entries of one request
const BINARY = "base64:";
const FORMS = [["text", "text"], ["json", "JSON"], ["hex", "hexadecimal"]];

function bytesOf(text) {
  if (!text.startsWith(BINARY)) return new TextEncoder().encode(text);
  try {
    return Uint8Array.from(atob(text.slice(BINARY.length)), (character) => character.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(text); // text that happens to begin so
  }
}

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, SHOWN_MAX / 4); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${part.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".")).join("")}`);
  }
  return lines.join("\n");
}

function shown(text, form) {
  if (form === "hex" || text.startsWith(BINARY)) return hex(bytesOf(text));
  if (form !== "json") return text;
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function entry([id, text], form, whole) {
  const body = shown(text, form);
  const isCut = body.length > SHOWN_MAX && !whole.has(id);
  const length = bytesOf(text).length;
  return h("li", { "data-key": id }, h("div", { class: "head" }, h("strong", {}, id), h("span", {}, `${size(length)}${text.startsWith(BINARY) ? ", not UTF-8" : ""}`)),
    h("pre", { tabindex: 0 }, isCut ? body.slice(0, SHOWN_MAX) : body),
    isCut ? h("button", { type: "button", onclick: (event) => { whole.add(id); event.target.previousSibling.textContent = body; event.target.remove(); } },
      `Show all ${size(length)}`) : form === "hex" && length > SHOWN_MAX / 4 ? h("p", { class: "aside" }, `The first ${SHOWN_MAX / 4} bytes of ${count(length)}.`) : "");
}

const first = (ctx) => Math.max(0, Number(ctx.query.get("from") ?? 0) || 0);
const query = (ctx, from, to) => ({ ledger_id: ctx.params[0], start_entry_id: from, end_entry_id: to });
const read = (ctx, from, to, signal) => get(`${API}/ledger/read`, query(ctx, from, to), { signal });
const rowsOf = (answer) => Object.entries(answer).filter(([name]) => /^\d+$/.test(name));

async function loadTail(ctx, signal) {
  const { kept } = ctx;
  kept.tail ??= { rows: [], next: null, dropped: 0, quiet: 0 }; // `quiet`: requests without a new entry
  const { tail } = kept;
  if (kept.paused) return tail;
  if (tail.next === null) {
    const { headers } = await call("GET", `${API}/ledger/read`, { query: query(ctx, 0, 0), signal });
    tail.next = Math.max(0, Number(headers.get("X-Bk-Last")) - PAGE + 1);
  }
  const rows = rowsOf(await read(ctx, tail.next, tail.next + TAIL_STEP - 1, signal));
  tail.quiet = rows.length ? 0 : tail.quiet + 1;
  if (rows.length) tail.next = Number(rows[rows.length - 1][0]) + 1;
  tail.rows.push(...rows);
  tail.dropped += Math.max(0, tail.rows.length - TAIL_MAX);
  tail.rows = tail.rows.slice(-TAIL_MAX);
  page.every = Math.min(10000, 1000 * 1.5 ** tail.quiet);
  return tail;
}

export const page = {
  title: (ctx) => `Entries of ledger ${ctx.params[0]}`,
  every: 5000,
  load: async (ctx, signal) => {
    if (ctx.query.get("tail")) return { tail: await loadTail(ctx, signal) };
    page.every = 30000;
    const from = first(ctx);
    return { rows: rowsOf(await read(ctx, from, from + PAGE - 1, signal)), from };
  },
  view: (ctx, { rows, from, tail }) => {
    const path = `/ledgers/${ctx.params[0]}/entries`;
    const form = ctx.query.get("form") ?? "text";
    const whole = (ctx.kept.whole ??= new Set());
    const filter = ctx.kept.filter ?? "";
    const head = [
      h("p", { class: "aside" }, h("a", { href: `#/ledgers/${ctx.params[0]}` }, `Ledger ${ctx.params[0]}`)),
      filterForm(ctx, path, [
        h("label", {}, "From entry", h("input", { name: "from", type: "search", inputmode: "numeric", pattern: "\\d*", value: tail ? "" : from })),
        choice(ctx, "form", "As", FORMS), choice(ctx, "tail", "Follow", [["", "no"], ["true", "live"]])]),
    ];
    if (!tail) {
      return h("div", {}, head, rows.length ? h("ol", { class: "entries" }, rows.map((row) => entry(row, form, whole)))
        : h("p", { class: "empty" }, `The ledger has no confirmed entry ${count(from)}.`),
      h("p", { class: "pager" }, from ? h("a", { href: target(path, { form, from: Math.max(0, from - PAGE) }) }, "Earlier") : "", h("span", {}, plural(rows.length, "entry", "entries")),
        rows.length === PAGE ? h("a", { href: target(path, { form, from: from + PAGE }), rel: "next" }, "Later") : ""));
    }
    const wanted = tail.rows.filter(([, text]) => text.includes(filter));
    return h("div", {}, head,
      h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => { ctx.kept.paused = !ctx.kept.paused; ctx.refresh(); } }, ctx.kept.paused ? "Continue" : "Pause"),
        h("label", {}, "Only entries with ", h("input", { type: "search", value: filter, oninput: (event) => { ctx.kept.filter = event.target.value; ctx.redraw(); } })),
        ctx.kept.paused ? state("paused", "unknown") : state("live", "ok"),
        h("span", {}, `${plural(wanted.length, "entry", "entries")} shown${tail.dropped ? `, ${count(tail.dropped)} older ones dropped` : ""}`)),
      wanted.length ? h("ol", { class: "entries" }, wanted.toReversed().slice(0, 100).map((row) => entry(row, form, whole)))
        : h("p", { class: "empty" }, "No entries yet. New ones appear here."));
  },
};
