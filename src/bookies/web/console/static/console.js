// The console: finds the page of an address, refreshes it while it is visible, and knows what it does not know.

import { Problem, open, session, token } from "./api.js";
import { clock, failure, h, morph, nextStep, prose } from "./dom.js";
import * as bookies from "./bookies.js";
import * as entries from "./entries.js";
import * as jobs from "./jobs.js";
import * as ledgers from "./ledgers.js";
import * as logs from "./logs.js";
import * as overview from "./overview.js";
import * as process from "./process.js";
import * as recovery from "./recovery.js";

const REFRESH_MS = 5000;
const REFRESH_MAX_MS = 60000;
const PAGES = [
  [/^\/$/, overview.page],
  [/^\/bookies$/, bookies.list],
  [/^\/bookies\/([^/]+)$/, bookies.one],
  [/^\/ledgers$/, ledgers.list],
  [/^\/ledgers\/(\d+)$/, ledgers.one],
  [/^\/ledgers\/(\d+)\/entries$/, entries.page],
  [/^\/logs$/, logs.list],
  [/^\/logs\/([^/]+)$/, logs.one],
  [/^\/recovery$/, recovery.page],
  [/^\/process$/, process.plotsPage],
  [/^\/settings$/, process.settings],
  [/^\/jobs$/, jobs.list],
  [/^\/jobs\/(\d+)$/, jobs.one],
  [/^\/changes$/, process.changes],
];
const NAV = [["/", "Overview", "o"], ["/bookies", "Bookies", "b"], ["/ledgers", "Ledgers", "l"], ["/logs", "Logs", "g"],
  ["/recovery", "Recovery", "r"], ["/process", "Plots", "p"], ["/settings", "Settings", "s"], ["/jobs", "Jobs", "j"],
  ["/changes", "Changes", "c"]];

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const footer = document.getElementById("footer");
const dialog = document.getElementById("dialog");
let visit = null; // the page at hand
let timer = 0;

function address() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  return { path: path || "/", query: new URLSearchParams(query) };
}

// Shows the page of the present address.
function show() {
  visit?.abort.abort();
  if (dialog.open) dialog.close();
  const { path, query } = address();
  const match = PAGES.map(([pattern, page]) => [pattern.exec(path), page]).find(([found]) => found);
  const ctx = {
    params: match ? match[0].slice(1).map(decodeURIComponent) : [],
    query,
    kept: {}, // of this visit
    go: (target) => (location.hash = target),
    refresh: () => refresh(visit),
    redraw: () => draw(visit),
  };
  visit = { page: match?.[1] ?? missing, ctx, abort: new AbortController(), data: undefined, at: 0, problem: null, failures: 0, busy: false };
  drawNav(path);
  main.replaceChildren(h("p", { class: "empty" }, "Loading ..."));
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  refresh(visit);
}

const missing = { title: () => "No such page", load: async () => null, view: () => h("p", {}, "The console has no such page. ", h("a", { href: "#/" }, "Overview")) };

async function refresh(present) {
  if (present.busy) {
    present.isStale = true; // what is being loaded may be older than a change
    return;
  }
  clearTimeout(timer);
  present.busy = true;
  const began = Date.now();
  try {
    if (!session.user) await open();
    present.data = await present.page.load(present.ctx, present.abort.signal);
    [present.at, present.problem, present.failures] = [Date.now(), null, 0];
  } catch (problem) {
    if (present !== visit || problem.name === "AbortError") return;
    if (problem.status === 401) {
      session.user = null;
      signIn(problem.message);
      return;
    }
    present.problem = problem instanceof Problem ? problem : new Problem(0, `the console has failed: ${problem.message}`);
    if (!(problem instanceof Problem)) console.error(problem);
    present.failures += 1;
  } finally {
    present.busy = false;
  }
  if (present !== visit) return;
  draw(present);
  if (present.isStale) {
    present.isStale = false;
    refresh(present);
    return;
  }
  const pause = Math.max(present.page.every ?? REFRESH_MS, 5 * (Date.now() - began)) * 2 ** present.failures;
  timer = setTimeout(() => refreshVisible(present), Math.min(pause, REFRESH_MAX_MS));
}

function refreshVisible(present) {
  if (document.hidden) document.addEventListener("visibilitychange", () => present === visit && refresh(present), { once: true });
  else refresh(present);
}

function draw(present) {
  const { page, ctx, data, problem, at } = present;
  const title = page.title(ctx);
  document.title = `${title} · bookies`;
  const fresh = h("div", {});
  if (problem) {
    const known = at ? `What is shown is from ${clock(at)}; the state since then is unknown.` : "";
    fresh.append(h("aside", { class: "stale", role: "status" }, h("strong", {}, at ? "Not up to date. " : "Nothing to show. "), prose(problem.message), ". ", known,
      problem.next ? [" Next: ", nextStep(problem.next), "."] : ""));
  }
  if (!page.ownTitle || data === undefined) fresh.append(h("h1", {}, title));
  if (data !== undefined) fresh.append(page.view(ctx, data));
  else if (!problem) fresh.append(h("p", { class: "empty" }, "Loading ..."));
  main.classList.toggle("old", Boolean(problem && at));
  morph(main, fresh);
  const who = session.user?.bookie ? `bookie ${session.user.bookie}` : "a process of auto-recovery";
  morph(footer, h("div", {}, at ? `As of ${clock(at)}, from ${who}. ` : "", "Keys: ", h("kbd", {}, "?"), " lists them."));
  drawSession();
}

function drawNav(path) {
  const current = NAV.findLast(([target]) => path === target || (target !== "/" && path.startsWith(`${target}/`)))?.[0];
  morph(nav, h("div", {}, NAV.map(([target, title]) => h("a", { href: `#${target}`, "aria-current": target === current ? "page" : null }, title))));
}

function drawSession() {
  const { user } = session;
  const node = h("div", {});
  if (user?.has_users) {
    node.append(h("span", {}, `${user.user}, ${user.role}`));
    if (token.get()) node.append(h("button", { type: "button", onclick: signOut }, "Sign out"));
  } else if (user) node.append(h("span", { title: "users_file names no users, so nothing can be changed" }, "read only"));
  morph(document.getElementById("session"), node);
}

function signOut() {
  token.set("");
  location.reload();
}

function signIn(reason) {
  clearTimeout(timer);
  const form = h("form", { class: "sign-in", onsubmit: (event) => {
    event.preventDefault();
    token.set(form.elements.token.value.trim());
    show();
  } },
    h("h1", {}, "Sign in"),
    h("p", {}, prose("An operator creates a token with `bk token add NAME --role viewer --users FILE`. It stays in this tab and is forgotten with it.")),
    token.get() ? failure(new Problem(401, reason)) : "",
    h("label", {}, "Token", h("input", { name: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false" })),
    h("p", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")));
  document.title = "Sign in · bookies";
  main.replaceChildren(form);
  form.elements.token.focus();
}

// -- keys --------------------------------------------------------------------------------------------------------

let isGoing = false; // after `g`

function showKeys() {
  const rows = [["g o, g b, ...", NAV.map(([, title, key]) => `${key} ${title.toLowerCase()}`).join(", ")], ["/", "search"], ["n", "next page"], ["u", "refresh now"], ["Esc", "close"]];
  dialog.onclose = null;
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, "Keys"),
    h("dl", { class: "facts" }, rows.map(([key, text]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)))),
    h("p", { class: "buttons" }, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.nodeName)) return;
  if (isGoing) {
    isGoing = false;
    const target = NAV.find(([, , key]) => key === event.key);
    if (target) location.hash = target[0];
  } else if (event.key === "g") isGoing = true;
  else if (event.key === "?") showKeys();
  else if (event.key === "u") refresh(visit);
  else if (event.key === "n") main.querySelector("[rel=next]")?.click();
  else if (event.key === "/") {
    event.preventDefault();
    main.querySelector("[type=search]")?.focus();
  }
});

addEventListener("hashchange", show);
show();
