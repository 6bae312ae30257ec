// Requests to this server: the token, errors in the form of RFC 9457, and what the user may call.

const TOKEN = "bookies-token";
const REPORT = "application/vnd.bookies.report+json";
const TIMEOUT_MS = 35000; // the server gives up after 30 s

export const API = "/api/v1";
export const session = { user: null, routes: new Map() };

export class Problem extends Error {
  constructor(status, detail, next = "") {
    super(detail);
    this.status = status;
    this.next = next;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => (value ? sessionStorage.setItem(TOKEN, value) : sessionStorage.removeItem(TOKEN)),
};

// Returns {data, text, headers}. `report`: ask for the text of the command beside the facts. Throws Problem.
export async function call(method, path, { query = {}, body, report = false, signal, accepted = [] } = {}) {
  const headers = { Accept: report ? REPORT : "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const url = given.length ? `${path}?${new URLSearchParams(given)}` : path;
  const limit = AbortSignal.timeout(TIMEOUT_MS);
  let response;
  let text;
  try {
    response = await fetch(url, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, "this server does not answer", "check its process and the network");
  }
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    data = null;
  }
  if (response.ok || accepted.includes(response.status)) return { data, text, headers: response.headers };
  throw new Problem(response.status, data?.detail ?? `${response.status} ${response.statusText}`, data?.next ?? "");
}

export async function get(path, query = {}, options = {}) {
  return (await call("GET", path, { query, ...options })).data;
}

// Reads what one bookie answers about itself: its command answers by the names of bookies.
export const getOwn = async (path, options) => Object.values(await get(path, {}, options))[0];

// Returns the value of a promise, or its error as {problem}, so that one part of a page may fail alone.
export async function settled(promise) {
  try {
    return { value: await promise };
  } catch (problem) {
    if (problem.name === "AbortError" || problem.status === 401) throw problem;
    return { problem };
  }
}

// Reads the user and the table of endpoints. Throws Problem.
export async function open() {
  session.user = await get(`${API}/user`);
  const description = await get("/openapi.json");
  session.routes.clear();
  for (const [path, methods] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      session.routes.set(`${method.toUpperCase()} ${path}`, operation);
    }
  }
}

const ORDER = ["anyone", "viewer", "reader", "writer", "operator", "administrator"];

export const route = (method, path) => session.routes.get(`${method} ${path}`);

export function accepts(method, path, name) {
  const operation = route(method, path);
  const body = operation?.requestBody?.content?.["application/json"]?.schema?.properties ?? {};
  return Boolean(operation?.parameters.some((parameter) => parameter.name === name) || name in body);
}

// Returns why the user may not call an endpoint; "" if the user may.
export function refusal(method, path) {
  const operation = route(method, path);
  if (!operation) return "this process does not serve it";
  if (!session.user.has_users) return method === "GET" ? "" : "this server has no users, so it changes nothing";
  const needed = operation["x-role"];
  return ORDER.indexOf(session.user.role) >= ORDER.indexOf(needed) ? "" : `needs the role ${needed}`;
}
