// Logs: their ledgers, and cursors with their lag.

import { API, get, settled } from "./api.js";
import { count, duration, facts, h, moment, part, plural, section, since, size, state, table } from "./dom.js";
import { field, filterForm, pager, readPage } from "./paging.js";

const SHOWN_MAX = 200; // ledgers of a log

export const list = {
  title: () => "Logs",
  every: 15000,
  load: (ctx, signal) => readPage(ctx, signal, `${API}/logs`, ["prefix"]),
  view: (ctx, data) => h("div", {},
    filterForm(ctx, "/logs", field(ctx, "prefix", "Name begins with")),
    table([["Log", (name) => h("a", { href: `#/logs/${encodeURIComponent(name)}` }, name)]], data.rows,
      { caption: "Logs", empty: ctx.query.get("prefix") ? `No log's name begins with ${ctx.query.get("prefix")}.` : "The cluster has no logs." }),
    pager(ctx, "/logs", ["prefix"], data)),
};

const entriesOf = (extent) => (extent.last === null ? null : Math.max(0, extent.last - extent.first + 1));

function lag(row) {
  if (row.is_truncated) return state("truncated: its next entry is deleted", "bad");
  if (row.entries_behind === null) return state("unknown: the end of the open ledger cannot be read here", "unknown");
  if (!row.entries_behind) return state("at the end", "ok");
  const age = row.seconds_behind === null ? "" : `, ${duration(row.seconds_behind)} old`;
  return `${plural(row.entries_behind, "entry", "entries")}, ${size(row.bytes_behind)}${age}`;
}

export const one = {
  title: (ctx) => `Log ${ctx.params[0]}`,
  load: async (ctx, signal) => {
    const path = `${API}/logs/${encodeURIComponent(ctx.params[0])}`;
    const [log, cursors] = await Promise.all([get(path, {}, { signal }), settled(get(`${path}/cursors`, {}, { signal }))]);
    return { log, cursors };
  },
  view: (ctx, { log, cursors }) => {
    const extents = log.extents.slice(-SHOWN_MAX).toReversed();
    const open = log.extents.find((extent) => extent.last === null);
    return h("div", {},
      facts([["Quorums", `E${log.ensemble}/Qw${log.write_quorum}/Qa${log.ack_quorum}`], ["Digest", log.digest], ["Format", log.record_format], ["Epoch", log.epoch],
        ["Created", moment(log.created_ms)], ["Begins at", log.extents.length ? `${log.extents[0].ledger}:${log.extents[0].first}` : "no entries yet"],
        ["Being deleted", log.deleting.join(", ")]]),
      open ? h("p", { class: "buttons" }, h("a", { class: "button", href: `#/ledgers/${open.ledger}/entries?tail=true` }, "Follow its newest entries")) : "",
      section("Cursors", part(cursors, (rows) => table([
        ["Cursor", (row) => row.cursor], ["Next entry", (row) => h("code", {}, row.position)], ["Behind the end", lag], ["Moved", (row) => since(row.moved_ms)],
      ], rows.toSorted((one, other) => (other.entries_behind ?? 0) - (one.entries_behind ?? 0)), { caption: "Cursors", empty: "The log has no cursors, so none holds truncation back." }))),
      section("Ledgers", log.extents.length > SHOWN_MAX ? h("p", { class: "aside" }, `The last ${SHOWN_MAX} of ${count(log.extents.length)}.`) : "",
        table([
          ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger), "number"],
          ["First entry", (row) => count(row.first), "number"],
          ["Entries", (row) => (entriesOf(row) === null ? "open" : count(entriesOf(row))), "number"],
          ["Payload", (row) => (row.bytes === null ? "unknown" : size(row.bytes)), "number"],
        ], extents, { caption: "Ledgers, the newest first", empty: "No entries yet." })));
  },
};
