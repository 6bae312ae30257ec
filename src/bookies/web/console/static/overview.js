// Overview: whether all is well, and if not, why and what to do.

import { API, get, settled } from "./api.js";
import { facts, failure, h, part, prose, section, state } from "./dom.js";
import { plots } from "./plots.js";

const LINKS = { bookie: "#/bookies/", ledger: "#/ledgers/" };

function subject(about) {
  if (about === "recovery") return h("a", { href: "#/recovery" }, "recovery");
  const [kind, id] = about.split(" ");
  return LINKS[kind] && id ? h("a", { href: LINKS[kind] + encodeURIComponent(id) }, about) : "";
}

function finding({ level, what, remedy, about }) {
  return h("li", { class: level }, state({ ok: "good", warn: "attention", bad: "act now" }[level], level),
    h("div", {}, h("p", {}, prose(what[0].toUpperCase() + what.slice(1)), "."),
      remedy ? h("p", { class: "remedy" }, h("span", {}, "What to do: "), prose(remedy), ".") : ""),
    subject(about));
}

// Conditions of this process that no finding mentions.
function conditions(result, findings) {
  if (result.problem) return failure(result.problem);
  const unmet = (result.value.conditions ?? []).filter((row) => !row.holds && !findings.some(({ what }) => what.includes(row.reason)));
  return unmet.map((row) => ({ level: "warn", what: `this process: ${row.reason || row.name}`, remedy: row.next, about: "" }));
}

export const page = {
  title: () => "Overview",
  ownTitle: true,
  every: 8000, // each time, up to a hundred bookies are asked
  load: async (ctx, signal) => {
    const [health, own, cluster, samples] = await Promise.all([
      settled(get(`${API}/health`, {}, { signal })),
      settled(get("/healthz", {}, { signal, accepted: [503] })),
      settled(get(`${API}/cluster`, {}, { signal })),
      settled(get(`${API}/samples`, {}, { signal })),
    ]);
    if (health.problem && own.problem) throw health.problem;
    return { health, own, cluster, samples };
  },
  view: (ctx, { health, own, cluster, samples }) => {
    const known = health.value ?? { level: "unknown", findings: [],
      sentence: `The state of the cluster is unknown: ${health.problem.message}.` };
    const local = conditions(own, known.findings);
    const isLocalOnly = known.level === "ok" && Array.isArray(local) && local.length;
    const level = isLocalOnly ? "warn" : known.level;
    const sentence = isLocalOnly ? `The cluster is well, but this process needs attention: ${local[0].what.replace("this process: ", "")}.` : known.sentence;
    const problems = [...(Array.isArray(local) ? local : []), ...known.findings.filter((row) => row.level !== "ok")];
    const good = known.findings.filter((row) => row.level === "ok");
    return h("div", {},
      h("h1", { class: `sentence ${level}`, "aria-live": "polite" }, prose(sentence)),
      health.problem?.next ? h("p", { class: "remedy" }, "What to do: ", prose(health.problem.next), ".") : "",
      Array.isArray(local) ? "" : local,
      problems.length ? section("Why, and what to do", h("ul", { class: "findings" }, problems.map(finding))) : "",
      good.length && problems.length ? section("What is well", h("ul", { class: "findings" }, good.map(finding))) : "",
      section("This process, last hours", part(samples, (value) => plots(value, ["adds", "add_p99", "reads", "disk", "marked", "cpu"], { small: true }))),
      section("Cluster", part(cluster, (value) => facts([
        ["Metadata store", h("code", {}, value.metadata)], ["Instance", h("code", {}, value.instance_id)], ["Layout", value.layout],
        ["Bookies", value.bookies], ["Writable", value.writable_bookies], ["Read-only", value.read_only_bookies], ["Unavailable", value.unavailable_bookies]]))));
  },
};
