// The process of this server: plots of its last hours, settings with their provenance, and the latest changes.

import { API, get, getOwn, session } from "./api.js";
import { button } from "./actions.js";
import { duration, facts, h, moment, prose, state, table } from "./dom.js";
import { plots } from "./plots.js";

export const plotsPage = {
  title: () => (session.user?.bookie ? `Bookie ${session.user.bookie}, last hours` : "This process, last hours"),
  every: 10000,
  load: (ctx, signal) => get(`${API}/samples`, {}, { signal }),
  view: (ctx, samples) => h("div", {}, plots(samples),
    h("p", { class: "aside" }, `A sample every ${samples.interval_s} s, kept for ${duration(samples.kept_s)} and until the process ends.`)),
};

const SETTINGS = `${API}/bookies/{bookie}/settings`;
const text = (value) => (Array.isArray(value) ? value.join(", ") : String(value ?? "none"));

export const settings = {
  title: () => "Settings",
  every: 30000,
  load: (ctx, signal) => (session.user.bookie ? getOwn(`${API}/bookies/-/settings`, { signal }) : null),
  view: (ctx, rows) => {
    if (rows === null) return h("p", {}, prose("This process has no bookie. Its settings are its `BK_...` variables."));
    const { filter = "", changed = false } = ctx.kept;
    const set = (name, value) => {
      ctx.kept[name] = value;
      ctx.redraw();
    };
    const shown = rows.filter((row) => `${row.name} ${row.help}`.toLowerCase().includes(filter.toLowerCase()) && (!changed || row.source !== "default"));
    return h("div", {},
      h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", {}, "Name or meaning", h("input", { type: "search", value: filter, oninput: (event) => set("filter", event.target.value) })),
        h("label", { class: "check" }, h("input", { type: "checkbox", onchange: (event) => set("changed", event.target.checked) }), " only those that are set")),
      table([
        ["Setting", (row) => [h("code", {}, row.name), h("p", { class: "help" }, prose(row.help))]],
        ["Value", (row) => h("code", {}, text(row.value))],
        ["From", (row) => (row.source === "default" ? "default" : h("span", {}, h("strong", {}, row.source), `, default ${text(row.default)}`))],
        ["Change", (row) => (row.changeable ? change(ctx, row) : "needs a restart")],
      ], shown, { caption: "Settings", empty: "No setting matches." }));
  },
};

function change(ctx, row) {
  return button({ label: "Change ...", title: `Change ${row.name}`, verb: "Change it", method: "PATCH", path: SETTINGS, values: { bookie: "-" },
    fields: [{ name: "value", label: row.help, value: text(row.value) }], collect: ({ value }) => ({ set: [`${row.name}=${value}`] }),
    effect: "The value applies until the bookie stops. A restart uses the file, the environment or the default again.", done: ctx.refresh });
}

const MAY_SEE = ["operator", "administrator"];

export const changes = {
  title: () => "Latest changes",
  load: (ctx, signal) => (MAY_SEE.includes(session.user.role) ? get(`${API}/changes`, {}, { signal }) : null),
  view: (ctx, rows) => (rows === null ? h("p", {}, "Operators and administrators see who has changed what.") : h("div", {},
    table([
      ["When", (row) => moment(row.at_ms)], ["Who", (row) => `${row.who}, ${row.role}`],
      ["What", (row) => [h("code", {}, row.call), h("details", { "data-key": row.at_ms }, h("summary", {}, "Details"), facts([["From", row.peer], ["Arguments", row.arguments],
        ["Body", row.body], ["Before", row.before], ["After", row.after]]))]],
      ["Result", (row) => (row.cause === undefined ? state("done", "ok") : [state("refused or failed", "bad"), h("p", { class: "help" }, prose(row.cause))])],
    ], rows, { caption: "Latest changes", empty: "This server has been asked for no change since its process started." }),
    h("p", { class: "aside" }, prose("The last 100 that were asked of this server, until its process ends. All are lines of the log, on the logger `bookies.audit`; other servers have their own.")))),
};
