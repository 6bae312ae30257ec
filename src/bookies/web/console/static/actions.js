// Changes: each one asks first, with what will happen. Where the endpoint has a dry run, the server says it.

import { call, refusal, accepts } from "./api.js";
import { failure, h, morph, prose, reportText } from "./dom.js";

const dialog = document.getElementById("dialog");

const at = (path, values) => path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(values[name]));

// Returns a button. `action`: {label, title, method, path (of the table), values, body, effect, fields, done}.
// `effect`: a sentence; `fields`: [{name, label, value, type}] of the body, which the user fills in.
export function button(action) {
  const why = refusal(action.method, action.path);
  return h("button", { type: "button", disabled: Boolean(why), title: why || null, onclick: () => ask(action) }, action.label);
}

function ask(action) {
  const fields = action.fields ?? [];
  const hasDryRun = !action.noTrial && accepts(action.method, action.path, "dry_run");
  const state = { preview: null, problem: null, done: null, busy: false };
  const given = () => {
    const values = Object.fromEntries(fields.map((field) => [field.name, dialog.querySelector(`[name="${field.name}"]`).value]));
    return { ...(action.body ?? {}), ...(action.collect ? action.collect(values) : values) };
  };

  async function send(dryRun) {
    [state.busy, state.problem] = [true, null];
    draw();
    const isBody = action.method !== "DELETE";
    const body = isBody ? { ...given(), ...(dryRun ? { dry_run: true } : {}) } : undefined;
    try {
      const query = dryRun ? { dry_run: "true" } : isBody ? {} : given();
      const { data } = await call(action.method, at(action.path, action.values ?? {}), { query, body, report: true });
      const text = data?.text ?? [JSON.stringify(data, null, 1)];
      if (dryRun) state.preview = text;
      else state.done = text.length ? text : ["done"];
    } catch (problem) {
      state.problem = problem;
    }
    state.busy = false;
    draw();
    if (state.done && action.done) action.done();
  }

  function draw() {
    const needsTrial = hasDryRun && state.preview === null;
    const form = h("form", { method: "dialog", onsubmit: (event) => {
      event.preventDefault();
      if (state.done) dialog.close();
      else if (!state.busy) send(needsTrial);
    } },
      h("h2", { id: "dialog-title" }, action.title),
      action.effect ? h("p", {}, prose(action.effect)) : "",
      state.done ? "" : fields.map((field) => h("label", {}, field.label,
        h("input", { name: field.name, type: field.type ?? "text", value: field.value ?? "", required: field.required !== false,
          autocomplete: "off", oninput: () => { if (state.preview !== null) { state.preview = null; draw(); } } }))),
      state.preview && !state.done ? [h("p", { class: "lead" }, "What will happen, as the server reports it:"), reportText(state.preview)] : "",
      state.problem ? failure(state.problem) : "",
      state.done ? [h("p", { class: "lead" }, "Done."), reportText(state.done)] : "",
      h("p", { class: "buttons" },
        state.done ? "" : h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
        h("button", { type: "submit", class: "primary", disabled: state.busy },
          state.done ? "Close" : state.busy ? "Working ..." : needsTrial ? "Show what will happen" : action.verb ?? action.label)));
    morph(dialog, h("div", {}, form));
  }

  dialog.replaceChildren();
  draw();
  dialog.showModal();
  if (hasDryRun && !fields.length) send(true);
}
