// Auto-recovery: what lacks replicas and why, who repairs it, drains and scrub with progress and forecast.

import { API, get, getOwn, session, settled } from "./api.js";
import { button } from "./actions.js";
import { announced, scrub } from "./bookies.js";
import { count, duration, facts, h, moment, part, plural, prose, section, since, size, state, table } from "./dom.js";
import { PAGE } from "./paging.js";

const PATH = `${API}/recovery`;

// Forecast from what this page has seen: how fast the number of marked ledgers falls.
function forecast(kept, marked) {
  const now = Date.now();
  if (!kept.first || marked > kept.first.marked) kept.first = { marked, at: now };
  const done = kept.first.marked - marked;
  const passed = (now - kept.first.at) / 1000;
  if (!marked) return "";
  if (!done || passed < 10) return "No forecast yet: this page has seen no ledger repaired.";
  return `${plural(done, "ledger")} repaired in ${duration(passed)}; at this rate none is left in ${duration((marked * passed) / done)}.`;
}

function reason(row) {
  const { report } = row;
  if (!report) return row.locked_by ? "being repaired" : "no worker has tried it yet";
  const [loss] = report.losses;
  if (loss) return state(`entries ${count(loss.first)} to ${count(loss.last)} are on no available bookie`, "bad");
  const [wait] = report.waits;
  return wait ? `waits for ${wait.for}${wait.bookie ? ` (${wait.bookie})` : ""}: ${wait.why}` : "a worker checks it again";
}

function statusView(ctx, status) {
  return h("div", {}, facts([
    ["Repairs", status.is_enabled ? state("enabled", "ok") : state("disabled", "bad")],
    ["Auditor", status.auditor ?? state("none: no process of auto-recovery runs", "bad")],
    ["A bookie counts as lost after", status.lost_bookie_delay_s === null ? "not set: the first auditor sets it" : `${status.lost_bookie_delay_s} s`],
    ["Ledgers that lack replicas", count(status.marked)], ["Being repaired", count(Object.keys(status.locks).length)], ["Cannot be repaired now", count(status.stuck.length)],
    ...(status.housekeeper ? [["Applies limits of logs while no auditor does", status.housekeeper]] : [])]),
  h("p", {}, forecast(ctx.kept, status.marked)));
}

const doing = (process) => process.tasks.find((task) => task.task === "worker")?.doing ?? "unknown";

function processes(status) {
  return table([
    ["Process", (row) => row.name], ["Heard of", (row) => since(row.written_ms)],
    ["Worker", (row) => (status.gone.includes(row.name) ? state("ended without notice", "bad") : doing(row))],
    ["Repaired", (row) => count(row.worker.ledgers_repaired), "number"], ["Copied", (row) => size(row.worker.bytes_copied), "number"],
    ["Failures", (row) => row.tasks.reduce((sum, task) => sum + task.failures, 0), "number"],
  ], status.processes, { caption: "Processes of auto-recovery", empty: "No process of auto-recovery has reported. Start one with bk recovery run, or set auto_recovery=true." });
}

export const page = {
  title: () => "Recovery",
  load: async (ctx, signal) => {
    const own = session.user.bookie;
    const [status, marked, drains, leases, pass] = await Promise.all([
      settled(get(PATH, {}, { signal })), settled(get(`${PATH}/ledgers`, { limit: PAGE }, { signal })),
      settled(get(`${API}/drains`, {}, { signal })), settled(get(`${API}/maintenance`, {}, { signal })),
      own ? settled(getOwn(`${API}/bookies/-/scrub`, { signal })) : null,
    ]);
    if (status.problem && marked.problem) throw status.problem;
    return { status, marked, drains, leases, pass };
  },
  view: (ctx, { status, marked, drains, leases, pass }) => h("div", {},
    part(status, (value) => statusView(ctx, value)),
    h("p", { class: "buttons" }, actions(ctx)),
    section("Ledgers that lack replicas", part(marked, (rows) => [table([
      ["Ledger", (row) => h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger), "number"], ["Bookies", (row) => row.missing.join(", ") || "none named"],
      ["Since", (row) => (row.since_ms ? since(row.since_ms) : "unknown")], ["Repaired by", (row) => row.locked_by ?? "nobody now"], ["Why not yet", reason],
    ], rows, { caption: "Ledgers that lack replicas", empty: "No ledger is known to lack replicas." }),
    rows.length === PAGE ? h("p", { class: "aside" }, `The first ${PAGE} are shown.`) : ""])),
    section("Bookies being drained", part(drains, (rows) => table([
      ["Bookie", (row) => h("a", { href: `#/bookies/${encodeURIComponent(row.bookie)}` }, row.bookie)], ["Since", (row) => since(row.since_ms)],
      ["Progress", (row) => announced({ draining: row })], ["Reported", (row) => (row.state_ms ? since(row.state_ms) : "not yet")], ["By", (row) => row.by],
    ], rows, { caption: "Drains", empty: "No bookie is being drained." }))),
    section("Maintenance", part(leases, (rows) => table([
      ["Bookie", (row) => h("a", { href: `#/bookies/${encodeURIComponent(row.bookie)}` }, row.bookie)], ["Until", (row) => moment(row.until_ms)],
      ["Reason", (row) => row.reason || "none given"], ["By", (row) => row.by],
    ], rows, { caption: "Maintenance", empty: "No bookie is in maintenance." }))),
    section("Processes", part(status, processes)),
    pass ? section(`Scrub of bookie ${session.user.bookie}`, part(pass, scrub)) : "",
    h("p", { class: "aside" }, prose("Other bookies scrub too: `bk bookie scrub`, or their own consoles."))),
};

function actions(ctx) {
  const act = (label, path, effect, more = {}) => button({ label: `${label} ...`, title: label, verb: label, method: "POST", path: `${PATH}/${path}`, effect, done: ctx.refresh, ...more });
  return [
    act("Audit now", "audit", "The auditor checks all ledgers at once, and treats bookies that are not registered as lost without delay: their replicas are copied."),
    act("Disable repairs", "disable", "No lost replica is recreated in the whole cluster until repairs are enabled again. Repairs in progress are finished."),
    act("Enable repairs", "enable", "Workers recreate lost replicas again."),
    act("Change the delay", "delay", "A longer delay tolerates restarts; a shorter one recreates replicas sooner.", { method: "PUT", fields: [{ name: "seconds", label: "Seconds until a bookie counts as lost", type: "number", value: 30 }] }),
  ];
}
