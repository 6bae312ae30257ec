// Ledgers: found by id, label and other filters; one ledger with its fragments and replicas drawn.

import { API, accepts, call, get, route } from "./api.js";
import { button } from "./actions.js";
import { count, facts, failure, h, moment, plural, prose, reportText, section, since, size, state, svg, table } from "./dom.js";
import { choice, field, filterForm, pager, readPage } from "./paging.js";

const FILTERS = ["label", "state", "bookie", "under_replicated"];
const DRAWN_MAX = 60; // fragments
const PATH = `${API}/ledgers`;

const available = () => FILTERS.filter((name) => accepts("GET", PATH, name));
const quorums = (row) => `E${row.ensemble}/Qw${row.write_quorum}/Qa${row.ack_quorum}`;
const labels = (row) => Object.entries(row.labels).map(([name, value]) => h("span", { class: "tag" }, `${name}=${value}`));

export const list = {
  title: () => "Ledgers",
  every: 15000,
  load: (ctx, signal) => readPage(ctx, signal, PATH, available()),
  view: (ctx, data) => {
    const has = available();
    return h("div", {},
      h("form", { class: "filters", role: "search", onsubmit: (event) => {
        event.preventDefault();
        location.hash = `/ledgers/${event.target.elements.id.value.trim()}`;
      } }, h("label", {}, "Ledger id", h("input", { name: "id", type: "search", inputmode: "numeric", pattern: "\\s*\\d+\\s*", required: true, autocomplete: "off" })), h("button", { type: "submit" }, "Open")),
      filterForm(ctx, "/ledgers", [
        field(ctx, "label", "Label", { placeholder: "name=value", pattern: ".+=.*" }),
        has.includes("bookie") ? field(ctx, "bookie", "Bookie") : "",
        has.includes("state") ? choice(ctx, "state", "State", [["", "all"], ["open", "open"], ["in_recovery", "in recovery"], ["closed", "closed"]]) : "",
        has.includes("under_replicated") ? choice(ctx, "under_replicated", "Replicas", [["", "all"], ["true", "missing"]]) : "",
        h("label", {}, "After id", h("input", { name: "after", type: "search", inputmode: "numeric", pattern: "\\d*", value: ctx.query.get("after") ?? "" })),
      ]),
      table([
        ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger), "number"],
        ["State", (row) => state(row.state)],
        ["Quorums", quorums],
        ["Entries", (row) => (row.last_entry === null ? "not sealed" : count(row.last_entry + 1)), "number"],
        ["Payload", (row) => (row.length === null ? "not sealed" : size(row.length)), "number"],
        ["Fragments", (row) => row.fragments.length, "number"],
        ["Created", (row) => (row.created_ms ? since(row.created_ms) : "unknown")],
        ["Labels", labels],
      ], data.rows, { caption: "Ledgers", empty: "No ledger matches." }),
      pager(ctx, "/ledgers", has, data),
      h("p", { class: "aside" }, "Ledgers that lack replicas: ", h("a", { href: "#/recovery" }, "recovery"), "."));
  },
};

const TONES = { ok: "ok", stored: "ok", "not asked": "unknown", "cannot tell": "unknown", unavailable: "warn" };

// Draws fragments as columns and the places of the ensemble as rows. `checked`: the fragments of `explain`, or null.
function drawing(ledger, checked) {
  const shown = ledger.fragments.slice(-DRAWN_MAX);
  const replicas = new Map((checked ?? []).flatMap(({ first_entry: first, replicas: all }) => all.map((replica) => [`${first} ${replica.bookie}`, replica])));
  const offset = ledger.fragments.length - shown.length;
  const [width, row, top] = [960, 30, 22];
  const rows = Math.max(...shown.map((fragment) => fragment.bookies.length));
  const gap = 3;
  const each = (width - gap * (shown.length - 1)) / shown.length;
  const cells = shown.flatMap((fragment, column) => {
    const x = column * (each + gap);
    const head = each > 46 ? svg("text", { x, y: 14, class: "axis" }, `from ${count(fragment.first_entry)}`) : "";
    return [head, ...fragment.bookies.map((bookie, place) => {
      const replica = replicas.get(`${fragment.first_entry} ${bookie}`);
      const word = replica ? replica.state : "not asked";
      const text = `${bookie}, entries from ${count(fragment.first_entry)}: ${word}${replica?.error ? `, ${replica.error}` : ""}`;
      const y = top + place * row;
      return svg("g", { class: `replica ${TONES[word] ?? "bad"}`, role: "img", "aria-label": text }, svg("title", {}, text),
        svg("rect", { x: x.toFixed(1), y, width: each.toFixed(1), height: row - gap, rx: 4 }),
        each > 46 ? svg("text", { x: (x + 8).toFixed(1), y: y + 18 }, `${bookie}${word === "not asked" ? "" : ` · ${word}`}`.slice(0, Math.floor(each / 7))) : "");
    })];
  });
  return h("div", {}, offset ? h("p", { class: "aside" }, `The last ${DRAWN_MAX} of ${plural(ledger.fragments.length, "fragment")} are drawn.`) : "",
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Fragments and replicas" },
      svg("svg", { class: "fragments", viewBox: `0 0 ${width} ${top + rows * row}`, role: "group", "aria-label": `${plural(ledger.fragments.length, "fragment")} of ledger ${ledger.ledger}` }, cells)),
    checked ? "" : h("p", { class: "aside" }, "The bookies have not been asked: ", h("strong", {}, "check the replicas"), " shows what each of them has."));
}

async function explain(ctx, entry) {
  const id = ctx.params[0];
  const path = entry === null ? `${PATH}/${id}/explain` : `${PATH}/${id}/entries/${entry}/explain`;
  ctx.kept.explained = { entry, busy: true };
  ctx.redraw();
  try {
    const { data } = await call("GET", path, { report: true });
    ctx.kept.explained = { entry, text: data.text, facts: data.facts };
  } catch (problem) {
    ctx.kept.explained = { entry, problem };
  }
  ctx.redraw();
}

function explanation(explained) {
  if (!explained) return "";
  const what = explained.entry === null ? "its replicas" : `entry ${explained.entry}`;
  if (explained.busy) return h("p", { role: "status" }, `Asking the bookies about ${what} ...`);
  if (explained.problem) return failure(explained.problem);
  return h("div", { role: "status" }, h("p", { class: "lead" }, `About ${what}: ${explained.facts.verdict}`), reportText(explained.text));
}

export const one = {
  title: (ctx) => `Ledger ${ctx.params[0]}`,
  every: 15000,
  load: (ctx, signal) => get(`${PATH}/${ctx.params[0]}`, {}, { signal }),
  view: (ctx, ledger) => {
    const { explained } = ctx.kept;
    const checked = explained?.facts?.fragments ?? null;
    const findings = ledger.fragments.flatMap((fragment) => fragment.findings ?? []);
    return h("div", {},
      facts([["State", state(ledger.state)], ["Quorums", quorums(ledger)], ["Digest", ledger.digest],
        ["Entries", ledger.last_entry === null ? "not sealed: its writer knows" : count(ledger.last_entry + 1)],
        ["Payload", ledger.length === null ? "not sealed" : size(ledger.length)],
        ["Created", ledger.created_ms ? moment(ledger.created_ms) : "unknown"], ["Labels", labels(ledger)]]),
      section("Fragments and replicas", drawing(ledger, checked),
        findings.length ? h("ul", {}, [...new Set(findings)].slice(0, 10).map((text) => h("li", {}, prose(text)))) : "",
        h("p", { class: "buttons" },
          h("button", { type: "button", class: "primary", onclick: () => explain(ctx, null) }, "Check the replicas"),
          h("a", { class: "button", href: `#/ledgers/${ledger.ledger}/entries` }, "Show its entries"),
          route("DELETE", `${PATH}/{ledger}`) ? button({ label: "Delete ...", title: `Delete ledger ${ledger.ledger}`, verb: "Delete it", method: "DELETE", path: `${PATH}/{ledger}`,
            values: { ledger: ledger.ledger }, effect: "Its entries can no longer be read. During the quarantine a bookie can restore its replica with `bk bookie undelete`.",
            done: () => ctx.go("/ledgers") }) : "")),
      section("One entry", h("form", { class: "filters", onsubmit: (event) => {
        event.preventDefault();
        explain(ctx, event.target.elements.entry.value);
      } }, h("label", {}, "Entry id", h("input", { name: "entry", inputmode: "numeric", pattern: "\\d+", title: "A whole number, 0 or more", required: true, autocomplete: "off" })), h("button", { type: "submit" }, "Explain it"))),
      explanation(explained));
  },
};
