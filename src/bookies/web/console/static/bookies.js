// Bookies: the list in pages, and one bookie with its journal, storage and disks.

import { API, call, get, getOwn, session, settled } from "./api.js";
import { button } from "./actions.js";
import { bar, clock, duration, facts, h, moment, part, plural, prose, reportText, section, size, state, table } from "./dom.js";
import { choice, filterForm, pager, readPage } from "./paging.js";
import { plots } from "./plots.js";

const FILTERS = ["mode"];
const ONE = `${API}/bookies/{bookie}`;

export function announced({ maintenance, draining }) {
  return [
    maintenance ? h("span", {}, `maintenance until ${moment(maintenance.until_ms)}${maintenance.reason ? ` (${maintenance.reason})` : ""}`) : "",
    draining ? h("span", {}, `being drained: ${draining.state || "no progress report yet"}`) : "",
  ];
}

const answered = new Map(); // bookie -> time of its last answer to this tab

function disks(row) {
  if (row.unknown) {
    const at = answered.get(row.bookie);
    return state(`unknown since ${at ? clock(at) : "before this page was opened"}: ${row.unknown}`, "unknown");
  }
  if (row.disk_total !== undefined) answered.set(row.bookie, Date.now());
  if (row.disk_total === undefined) return row.mode === "down" ? "not asked" : "unknown";
  const used = row.disk_total ? 1 - row.disk_free / row.disk_total : 0;
  return bar(used, `${size(row.disk_free)} free of ${size(row.disk_total)}`);
}

const link = (id) => h("a", { href: `#/bookies/${encodeURIComponent(id)}` }, id);

export const list = {
  title: () => "Bookies",
  every: 10000,
  load: (ctx, signal) => readPage({ query: withSpace(ctx.query) }, signal, `${API}/bookies`, [...FILTERS, "space"]),
  view: (ctx, data) => h("div", {},
    filterForm(ctx, "/bookies", choice(ctx, "mode", "Mode", [["", "all"], ["writable", "writable"], ["read-only", "read-only"], ["down", "down"]])),
    table([
      ["Bookie", (row) => link(row.bookie)],
      ["Mode", (row) => state(row.mode)],
      ["Disks", disks],
      ["Location", (row) => row.location ?? "not set"],
      ["Address", (row) => row.address ?? "none"],
      ["Remarks", (row) => [...announced(row), ...(row.reasons ?? []).map((reason) => h("span", {}, prose(reason)))]],
    ], data.rows, { caption: "Bookies", empty: ctx.query.get("mode") ? `No bookie is ${ctx.query.get("mode")}.` : "The cluster has no bookies." }),
    pager(ctx, "/bookies", FILTERS, data)),
};

function withSpace(query) {
  const wanted = new URLSearchParams(query);
  wanted.set("space", "true");
  return wanted;
}

// Endpoints that only the bookie of this server answers.
const OWN = { state: "state", disks: "disks", space: "space", scrub: "scrub" };

export const one = {
  title: (ctx) => `Bookie ${ctx.params[0]}`,
  load: async (ctx, signal) => {
    const bookie = ctx.params[0];
    const path = `${API}/bookies/${encodeURIComponent(bookie)}`;
    const isOwn = bookie === session.user.bookie;
    const parts = isOwn ? Object.values(OWN) : [];
    const [shown, mark, samples, ...own] = await Promise.all([
      get(path, {}, { signal }),
      isOwn ? settled(get(`${API}/bookie/last_log_mark`, {}, { signal })) : null,
      isOwn ? settled(get(`${API}/samples`, {}, { signal })) : null,
      ...parts.map((name) => settled(getOwn(`${path}/${name}`, { signal }))),
    ]);
    return { shown, mark, samples, own: Object.fromEntries(parts.map((name, index) => [name, own[index]])), isOwn };
  },
  view: (ctx, { shown, mark, samples, own, isOwn }) => h("div", {},
    facts([["Mode", state(shown.mode)], ["Address", shown.address ?? "none: it is not registered"], ["Location", shown.location ?? "not set"],
      ["Disks", disks(shown)], ["Announced", announced(shown)], ["Problems", (shown.reasons ?? []).map((reason) => h("p", {}, prose(reason)))]]),
    h("p", { class: "buttons" }, clusterActions(ctx)),
    isOwn ? ownParts(ctx, own, mark, samples)
      : section("Journal, storage, settings", h("p", {}, "Only the bookie itself knows them. ",
        /^https?:/.test(shown.http) ? h("a", { href: `${shown.http}/console`, rel: "noreferrer" }, `Its console at ${shown.http}`)
          : shown.mode === "down" ? "It is down." : "It has no HTTP server: start it with http_port."))),
};

function ownParts(ctx, own, mark, samples) {
  return [
    section("Journal", part(own.state, (value) => facts([["Registered as", value.registered_as], ["Last stop", value.last_stop],
      ["Journal directories", value.journal_directories], ["Ledger directories", value.ledger_directories], ["Read-only because", value.read_only_because]])),
    part(mark, (value) => facts(Object.entries(value).map(([name, at]) => ["Replayed from", `${/\((.*)\)/.exec(name)?.[1] ?? name}, byte ${at.replace("Pos - ", "")}`])))),
    section("Disks", part(own.disks, (value) => h("div", {}, value.reason ? h("p", {}, prose(value.reason)) : "", facts(Object.entries(value.directory).map(([path, text]) => [path, inUnits(text)]))))),
    section("Storage", part(own.space, storage)),
    section("Scrub", part(own.scrub, scrub)),
    h("p", { class: "buttons" }, ownActions(ctx)),
    section("Slow requests", h("p", { class: "buttons" }, h("button", { type: "button", onclick: () => whySlow(ctx) }, "Explain those of the last hour")), slow(ctx.kept.slow)),
    section("Last hours", part(samples, (value) => plots(value))),
  ];
}

// The bookie writes the bytes of a disk in full.
const inUnits = (text) => text.replace(/([\d,]+) of ([\d,]+) bytes/, (_, ...numbers) => numbers.slice(0, 2).map((digits) => size(Number(digits.replaceAll(",", "")))).join(" of "));

async function whySlow(ctx) {
  ctx.kept.slow = await settled(call("GET", `${API}/bookies/-/slow`, { query: { since: "1h" }, report: true }));
  ctx.redraw();
}

const slow = (result) => (result ? part(result, ({ data }) => reportText(data.text)) : "");

const unknown = (value, text) => (value === null ? "not known yet: the bookie scans its entry logs after a start" : text(value));

function storage(value) {
  const live = value.entry_log_bytes ? value.live_bytes / value.entry_log_bytes : 0;
  return h("div", {}, facts([
    ["Ledgers", value.ledgers], ["In quarantine", value.ledgers_in_quarantine], ["Entry logs", unknown(value.entry_logs, String)],
    ["Their size", unknown(value.entry_log_bytes, size)],
    ["Live", unknown(value.live_bytes, (bytes) => `${size(bytes)} (${(100 * live).toFixed(0)} %)`)],
    ["Given back since the start", size(value.bytes_given_back)], ["Collections", value.runs],
    ["Compaction", value.is_compaction_held ? "suspended by an operator" : value.is_running ? "a collection runs" : "idle"]]),
  value.alarm ? h("p", { class: "failure" }, state("attention", "warn"), " ", prose(value.alarm)) : "");
}

export function scrub(value) {
  const left = value.rate_bytes && value.left_bytes ? ` About ${duration(value.left_bytes / value.rate_bytes)} left at ${size(value.rate_bytes)} per second.` : "";
  const now = value.is_suspended ? "Suspended by an operator." : value.is_running ? `Pass ${value.pass} runs: ${size(value.read_bytes)} read, ${size(value.left_bytes)} left.${left}`
    : `The next pass begins in ${duration(value.next_pass_s)}.`;
  return h("div", {}, h("p", {}, now),
    value.damaged_entries ? h("p", { class: "failure" }, state("damaged"), ` ${plural(value.damaged_entries, "entry is", "entries are")} damaged. Reads use the other replicas. A ledger without another replica has lost these entries. `, h("code", {}, `bk ledger repair ${[...new Set(value.damage.map((row) => row.ledger))].filter((id) => id !== null).slice(0, 3).join(" ") || "LEDGER"}`), " copies what another replica has.") : h("p", {}, state("no damage known", "ok")),
    value.damage.length ? table([
      ["Ledger", (row) => (row.ledger === null ? "unknown" : h("a", { href: `#/ledgers/${row.ledger}` }, row.ledger))],
      ["Entries", (row) => (row.first === row.last ? row.first : `${row.first} to ${row.last}`)], ["File", (row) => row.log], ["Problem", (row) => row.problem],
    ], value.damage.slice(0, 100), { caption: "Damage" }) : "");
}

function clusterActions(ctx) {
  const bookie = ctx.params[0];
  const values = { bookie };
  const done = ctx.refresh;
  return [
    button({ label: "Empty it ...", title: `Empty bookie ${bookie}`, verb: "Begin", method: "POST", path: `${ONE}/drain`, values, done,
      effect: "Auto-recovery copies its replicas to other bookies, and writers avoid it. It can be cancelled at any time." }),
    button({ label: "Cancel emptying ...", title: `Cancel the drain of ${bookie}`, verb: "Cancel the drain", method: "POST", path: `${ONE}/drain`, values, done, body: { cancel: true },
      effect: "Writers may use the bookie again. Copies that were made remain.", noTrial: true }),
    button({ label: "Announce maintenance ...", title: `Maintenance of ${bookie}`, verb: "Announce", method: "POST", path: `${ONE}/maintenance`, values, done,
      fields: [{ name: "duration", label: "For, such as 20m or 2h", value: "20m" }, { name: "reason", label: "Reason", required: false },
        { name: "force", label: "Even if ledgers have fewer replicas than their ack quorum meanwhile", type: "checkbox" }],
      effect: "Its replicas are not copied elsewhere during that time, and writers avoid it." }),
    button({ label: "End maintenance ...", title: `End the maintenance of ${bookie}`, verb: "End it", method: "POST", path: `${ONE}/maintenance`, values, done, body: { end: true },
      effect: "If the bookie is down then, it counts as lost after the usual delay.", noTrial: true }),
  ];
}

function ownActions(ctx) {
  const bookie = ctx.params[0];
  const act = (label, verb, path, body, effect) => button({ label: `${label} ...`, title: `${label}: bookie ${bookie}`, verb, method: "POST", path: `${ONE}/${path}`, values: { bookie }, body, effect, done: ctx.refresh });
  return [
    act("Collect garbage", "Collect", "gc", {}, "Deletes the data of deleted ledgers, and entry logs without live entries. Uses the disks while it runs."),
    act("Compact", "Compact", "compact", { major: true }, "Copies the live entries of mostly empty entry logs to a new log, and deletes the old ones. Uses the disks for some time."),
    act("Suspend compaction", "Suspend", "gc", { suspend: true }, "No compaction runs until it is resumed, also after a restart. Space is given back later."),
    act("Resume compaction", "Resume", "gc", { resume: true }, "Compaction runs again as the settings say."),
    act("Make read-only", "Make read-only", "read-only", {}, "The bookie refuses ordinary adds. Writers choose other bookies; with fewer than the ensemble size, writes fail."),
    act("Make writable", "Make writable", "read-write", {}, "The bookie accepts ordinary adds again."),
    act("Start the scrub", "Start", "scrub", { now: true }, "Reads and verifies all stored data, at the rate of the settings."),
  ];
}
