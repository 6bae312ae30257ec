// Jobs of this server: recoveries, decommissions, and Spark jobs with their forecast, progress and report.

import { API, call, get, refusal, session, settled } from "./api.js";
import { button } from "./actions.js";
import { count, duration, facts, failure, h, moment, part, prose, section, state, table } from "./dom.js";

const JOBS = `${API}/jobs`;
const ROWS_MAX = 200; // of a table of a report that are shown
const RUNS = ["running", "cancelling"];

const took = (row) => duration(((row.ended_ms ?? Date.now()) - row.began_ms) / 1000);

function outcome(row) {
  if (row.error) return row.error;
  if (row.spark) return row.result?.lead || row.progress || (RUNS.includes(row.state) ? "Spark starts, which takes some seconds." : "");
  return row.result === undefined ? "" : h("code", {}, JSON.stringify(row.result).slice(0, 300));
}

const verdict = (row) => (row.result?.is_good === false ? state("work to do", "warn") : state(row.state));

function cancel(ctx, row) {
  if (!RUNS.includes(row.state)) return "";
  const effect = row.spark ? "What its finished tasks have written remains. The same run can be continued." : "What it has copied so far remains.";
  return button({ label: "Cancel ...", title: `Cancel job ${row.id}`, verb: "Cancel it", method: "DELETE", path: `${API}/jobs/{job}`, values: { job: row.id }, effect, done: ctx.refresh });
}

// -- start ---------------------------------------------------------------------------------------------------------

function input(job, option) {
  const common = { name: option.name, autocomplete: "off", spellcheck: "false" };
  const choices = option.values ?? option.choices;
  if (choices) return h("select", { ...common, required: option.is_positional }, h("option", { value: "" }, option.default === null ? "" : `${option.default} (default)`), choices.map((value) => h("option", { value }, value)));
  if (option.type === "bool") return h("input", { ...common, type: "checkbox" });
  const isNumber = option.type === "int" || option.type === "float";
  return h("input", { ...common, type: isNumber ? "number" : "text", step: option.type === "float" ? "any" : null, required: option.is_positional, placeholder: option.default ?? (option.kind && option.kind !== "target" ? "name of a run" : option.metavar) });
}

function field(job, option) {
  const label = h("label", { class: option.type === "bool" ? "check" : null }, option.name.replaceAll("_", "-"), input(job, option));
  return h("div", { class: "field", "data-key": `${job}.${option.name}` }, label, h("p", { class: "help" }, prose(option.help)));
}

const RATE = { name: "rate", help: "Megabytes per second from and to each bookie, at most.", type: "float", default: null, metavar: "no limit" };
const RUN = { name: "run", help: "Name of an interrupted run to continue, with the same options.", type: "str", default: null, metavar: "a new run" };

function starter(ctx, jobs) {
  const why = refusal("POST", JOBS);
  const chosen = jobs.find((row) => row.job === ctx.kept.job) ?? jobs[0];
  async function start(event) {
    event.preventDefault();
    if (ctx.kept.busy) return;
    const { elements } = event.target;
    const options = Object.fromEntries(chosen.options.map(({ name, type }) => [name, type === "bool" ? elements[name].checked || null : elements[name].value]));
    [ctx.kept.busy, ctx.kept.problem] = [true, null];
    ctx.redraw();
    try {
      const { data } = await call("POST", JOBS, { body: { job: chosen.job, options, rate: elements.rate.value, run: elements.run.value } });
      ctx.go(`/jobs/${data.id}`);
    } catch (problem) {
      ctx.kept.problem = problem;
    }
    ctx.kept.busy = false;
    ctx.redraw();
  }
  return h("form", { class: "job", onsubmit: start },
    h("label", {}, "Job", h("select", { name: "job", onchange: (event) => { ctx.kept.job = event.target.value; ctx.redraw(); } },
      jobs.map((row) => h("option", { value: row.job, selected: row === chosen }, `${row.job}: ${row.help}`)))),
    chosen.effect ? h("p", {}, prose(`${chosen.effect} More than its dry run needs the role ${chosen.role}.`)) : h("p", {}, "It changes nothing in the cluster."),
    h("div", { class: "fields" }, [...chosen.options, RATE, RUN].map((option) => field(chosen.job, option))),
    ctx.kept.problem ? failure(ctx.kept.problem) : "",
    h("p", { class: "buttons" }, h("button", { type: "submit", class: "primary", disabled: Boolean(why) || ctx.kept.busy, title: why || null }, ctx.kept.busy ? "Working ..." : "Make the forecast"),
      h("span", { class: "aside" }, why || "It changes nothing, and says what the job will read and how long that takes.")));
}

export const list = {
  title: () => "Jobs",
  load: async (ctx, signal) => {
    const [rows, spark] = await Promise.all([get(JOBS, {}, { signal }), ctx.kept.spark ?? settled(get(`${API}/spark-jobs`, {}, { signal }))]);
    if (!spark.problem) ctx.kept.spark = spark;
    return { rows, spark };
  },
  view: (ctx, { rows, spark }) => h("div", {},
    table([
      ["Job", (row) => h("a", { href: `#/jobs/${row.id}` }, `${row.id}: ${row.job}`)], ["State", verdict], ["By", (row) => row.by], ["Began", (row) => moment(row.began_ms)],
      ["Took", took], ["Result", outcome], ["Change", (row) => cancel(ctx, row)],
    ], rows.toReversed(), { caption: "Jobs", empty: "No job has run since the process started." }),
    section("Start a Spark job", part(spark, (jobs) => starter(ctx, jobs))),
    h("p", { class: "aside" }, prose("Jobs of this process; they end with it. Runs of Spark jobs can be continued afterwards, here or by `bk spark`."))),
};

// -- one -----------------------------------------------------------------------------------------------------------

function carryOut(ctx, row) {
  if (!row.spark || row.state !== "done" || row.mode === "run") return "";
  const act = (label, mode, effect) => button({ label: `${label} ...`, title: `${label}: ${row.spark}`, verb: label, method: "POST", path: `${API}/jobs/{job}/run`, values: { job: row.id },
    body: { mode }, effect: `Forecast: ${row.result.lead}. ${effect}`, done: () => ctx.go("/jobs") });
  const buttons = [];
  if (row.effect && row.mode === "plan") buttons.push(act("Make a dry run", "dry-run", "It reads everything and writes nothing."));
  if (!row.effect || session.user.role === "administrator") buttons.push(act("Carry out", "run", row.effect || "It changes nothing in the cluster."));
  else buttons.push(h("button", { type: "button", disabled: true, title: "needs the role administrator" }, "Carry out ..."));
  return buttons;
}

async function download(ctx, row) {
  try {
    const { text } = await call("GET", `${API}/jobs/${row.id}/report`, { query: { form: "html" } });
    const url = URL.createObjectURL(new Blob([text], { type: "text/html" }));
    h("a", { href: url, download: `${row.run}-${row.mode}.html` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  } catch (problem) {
    ctx.kept.problem = problem;
    ctx.redraw();
  }
}

const cell = (value) => (typeof value === "number" ? value.toLocaleString("en") : value === null ? "" : typeof value === "boolean" ? (value ? "yes" : "no") : String(value));

function reportTable({ headers, rows, right }, caption) {
  const columns = headers.map((title, index) => [title, (row) => cell(row[index]), right.includes(index) ? "number" : null]);
  return [table(columns, rows.slice(0, ROWS_MAX), { caption }), rows.length > ROWS_MAX ? h("p", { class: "aside" }, `${count(rows.length - ROWS_MAX)} more rows are in the downloaded report.`) : ""];
}

function reportView(report) {
  const counters = Object.entries(report.counters);
  return h("div", {}, report.sections.filter((one) => one.table?.rows.length || one.text).map((one) => section(one.title, one.text ? h("p", {}, prose(one.text)) : "", one.table ? reportTable(one.table, one.title) : "")),
    counters.length ? section("Read and written", facts(counters.map(([name, value]) => [name.replaceAll("_", " "), count(value)]))) : "");
}

export const one = {
  title: (ctx) => `Job ${ctx.params[0]}`,
  load: async (ctx, signal) => {
    const row = await get(`${API}/jobs/${ctx.params[0]}`, {}, { signal });
    if (row.spark && row.state === "done") ctx.kept.report ??= await settled(get(`${API}/jobs/${row.id}/report`, {}, { signal }));
    return row;
  },
  view: (ctx, row) => h("div", {},
    facts([["Job", row.job], ["State", verdict(row)], ["By", row.by], ["Began", moment(row.began_ms)], ["Took", took(row)], ["Run", row.run ? h("code", {}, row.run) : null],
      ["Options", row.options && Object.entries(row.options).map(([name, value]) => `${name.replaceAll("_", "-")} ${value}`).join(", ")], ["Rate", row.rate ? `${row.rate} MB/s for each bookie` : null]]),
    h("p", { class: "lead", role: "status" }, outcome(row)),
    h("p", { class: "buttons" }, carryOut(ctx, row), cancel(ctx, row), ctx.kept.report?.value ? h("button", { type: "button", onclick: () => download(ctx, row) }, "Download the report") : ""),
    ctx.kept.problem ? failure(ctx.kept.problem) : "",
    row.messages?.length ? h("details", { "data-key": "messages", open: row.state === "failed" }, h("summary", {}, "Messages of the program"), h("pre", { class: "report", tabindex: 0 }, row.messages.join("\n"))) : "",
    ctx.kept.report ? part(ctx.kept.report, reportView) : ""),
};
