// Requests to the API: the key, the scopes that it lacks, and whether the server responds.
import { parseRecords } from "./json.js";

const KEY = "topics-key", DENIED = "topics-denied"; // stored in this tab until it is closed

const failure = (status, code, message, detail = {}) =>
  Object.assign(new Error(message), { status, code, detail });

export const session = {
  key: sessionStorage.getItem(KEY) ?? "",
  denied: new Set(JSON.parse(sessionStorage.getItem(DENIED) ?? "[]")), // scopes that the key lacks
  isKeyWanted: false,
  isLost: false, // the server did not respond to the last request
  changed() {}, // set by the app
};

export function signIn(key) {
  session.key = key;
  session.denied.clear();
  session.isKeyWanted = false;
  sessionStorage.removeItem(DENIED);
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Whether the server has reported that the key lacks this scope. If so, controls that need the
    scope are disabled. */
export const lacks = (scope) => session.denied.has(scope);
export const why = (scope) => (lacks(scope) ? `the key lacks the scope ${scope}` : "");

/** Set whether the connection is lost. Streams call this as well. */
export function streamLost(isLost) {
  if (session.isLost === isLost) return;
  session.isLost = isLost;
  session.changed();
}

/** Store what an error reports about the key. Streams call this as well. Returns the error. */
export function noted(error) {
  if (error.status === 401 && !session.isKeyWanted) {
    session.isKeyWanted = true;
    session.changed();
  }
  // If a key with read needs "read+write", it lacks write.
  for (const scope of error.status === 403 ? error.detail?.scope?.split("+") ?? [] : [])
    if (scope !== "read") session.denied.add(scope);
  sessionStorage.setItem(DENIED, JSON.stringify([...session.denied]));
  return error;
}

/** Return the JSON of the response. Throws an Error with `status` (0 if there was no response),
    `code` and `detail`. */
export async function ask(method, path, body, parse = JSON.parse) {
  const headers = { Accept: "application/json" };
  if (session.key) headers.Authorization = `Bearer ${session.key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const text = typeof body === "string" ? body : JSON.stringify(body);
  let answer, document;
  try {
    answer = await fetch(path, { method, headers, body: text, cache: "no-store" });
    document = parse(await answer.text());
  } catch {
    streamLost(true);
    throw failure(answer?.status ?? 0, "connection_lost", "the server does not respond");
  }
  const { code, message, detail } = document.error ?? {};
  streamLost([502, 504].includes(answer.status) || code === "shutting_down");
  if (answer.ok) return document;
  throw noted(failure(answer.status, code ?? `http_${answer.status}`,
    message ?? `a response with status ${answer.status}`, detail));
}

const of = (kind) => (name, rest = "") => `/v0/${kind}/${encodeURIComponent(name)}${rest}`;
export const topicPath = of("topics"), routerPath = of("routers");
export const query = (fields) => new URLSearchParams(
  Object.entries(fields).filter(([, value]) => value !== undefined && value !== ""));
export const topicState = (name) => ask("GET", topicPath(name, "?touch=false"));
/** Read records, whose `data` and `meta` are texts (json.js). */
export const diff = (name, from_seq, limit, more = {}) => ask("POST", topicPath(name, "/diff"),
  { from_seq, limit, include_tags: true, ...more }, parseRecords);

/** Return the entry of a topic in the list; undefined if there is none. A GET would return 404,
    which the browser logs. */
export async function listed(name) {
  const { topics } = await ask("GET", `/v0/topics?${query({ prefix: name, page_size: 1 })}`);
  return topics.find((each) => each.topic === name);
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
/** Return a word of a command line, quoted if necessary. */
export const word = (text) => (/^[\w.:=-]+$/.test(text) ? text : quoted(text));

/** Return a command line that sends the same request. The key is a variable in it. */
export function curl(method, path, body) {
  const parts = ["curl", ...(method === "GET" || method === "POST" ? [] : ["-X", method])];
  parts.push(quoted(location.origin + path));
  if (session.key) parts.push('-H "Authorization: Bearer $TOPICS_API_KEY"');
  if (body === undefined) return parts.join(" ");
  const text = typeof body === "string" ? body : JSON.stringify(body);
  return [...parts, `-H 'Content-Type: application/json' -d ${quoted(text)}`].join(" ");
}
