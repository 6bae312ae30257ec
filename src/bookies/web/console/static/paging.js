// Lists in pages: the server sends at most a hundred rows, and the header `Link` names the next page.

import { call } from "./api.js";
import { h } from "./dom.js";

export const PAGE = 100;

// Reads the page of a list that the address names. Returns {rows, after}; `after`: of the next page, or null.
export async function readPage(ctx, signal, path, names) {
  const query = Object.fromEntries(names.map((name) => [name, ctx.query.get(name) ?? ""]));
  const { data, headers } = await call("GET", path, { query: { ...query, after: ctx.query.get("after") ?? "", limit: PAGE }, signal });
  const next = /<[^>]*[?&]after=([^&>]*)/.exec(headers.get("Link") ?? "");
  return { rows: data, after: next ? decodeURIComponent(next[1].replaceAll("+", " ")) : null };
}

export function target(path, query) {
  const given = Object.entries(query).filter(([, value]) => value);
  return `#${path}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// Links to the first and to the next page. `names`: the filters that stay.
export function pager(ctx, path, names, { rows, after }) {
  const filters = Object.fromEntries(names.map((name) => [name, ctx.query.get(name)]));
  return h("p", { class: "pager" },
    ctx.query.get("after") ? h("a", { href: target(path, filters) }, "First page") : "",
    h("span", {}, rows.length === 1 ? "1 row" : `${rows.length} rows`),
    after === null ? "" : h("a", { href: target(path, { ...filters, after }), rel: "next" }, "Next page"));
}

// A form whose fields become the filters of the address. `fields`: nodes with names.
export function filterForm(ctx, path, fields) {
  return h("form", { class: "filters", role: "search", onsubmit: (event) => {
    event.preventDefault();
    location.hash = target(path, Object.fromEntries(new FormData(event.target)));
  } }, fields, h("button", { type: "submit" }, "Show"));
}

export function choice(ctx, name, label, options) {
  return h("label", {}, label, h("select", { name, onchange: (event) => event.target.form.requestSubmit() },
    options.map(([value, text]) => h("option", { value, selected: (ctx.query.get(name) ?? "") === value }, text))));
}

export function field(ctx, name, label, options = {}) {
  return h("label", {}, label, h("input", { name, type: "search", value: ctx.query.get(name) ?? "", autocomplete: "off", spellcheck: "false", ...options }));
}
