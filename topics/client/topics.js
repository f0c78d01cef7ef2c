// Watch topics from a page, or from Node 20: one ES module, no dependency.
//
//   import { subscribe } from "./topics.js";
//
//   const subscription = subscribe({
//     url: "http://127.0.0.1:4000", // default: where the page comes from
//     key: "secret", // sent in the Authorization field, which EventSource cannot do
//     topics: ["orders"],
//     tail: true, // this and all other members are parameters of GET /v0/watch: node, from_seq ...
//     on: {
//       record: (record) => console.log(record.topic, record.$seq, record.$tag, record.data),
//       tombstone: (gap) => console.warn(`lost: ${gap.gap_from} to ${gap.gap_to}, ${gap.reason}`),
//       caughtUp: ({ topic, head_seq }) => {}, // there are no more records now
//       topicDeleted: ({ topic, head_seq }) => {}, // the other topics go on
//       status: ({ state, error, pause_ms }) => {},
//     },
//   });
//   subscription.close(); // no handler is called after it; the option `signal` does the same
//
// Each record comes once and in order, also over a restart of the server. Lost records come as a
// tombstone in their place. A promise that a handler returns is awaited before the next event. An
// exception of a handler is reported as uncaught, and the events go on.
//
//   state      when                                                       with
//   "open"     the server has answered
//   "waiting"  the connection is lost or the server busy: it tries again  error, pause_ms
//   "closed"   the server refuses, once: a wrong key, an unknown topic    error
//
// `error.status` is the HTTP status, 0 without an answer; `error.code` is the API's. Without a
// handler of the status, the error that closes goes to the console. `subscription.id` says which
// events were handled; a subscription with this `id` goes on behind them, also after a reload.

const RETRIED = [0, 429, 502, 503, 504];
const PAUSE_FIRST_MS = 100; // doubled up to PAUSE_MAX_MS, less up to a half by chance
const PAUSE_MAX_MS = 5000;
const HEARTBEAT_MIN_MS = 1000; // the server's

const failure = (status, code, message, more) =>
  Object.assign(new Error(message), { status, code, ...more });

/** Throws a TypeError when the URL or the key cannot be one. */
export function subscribe({ url = globalThis.location?.origin, key, topics, on = {}, id, signal,
  heartbeat_ms = 15_000, parse = JSON.parse, ...parameters }) {
  const address = new URL("/v0/watch", url);
  const query = { topic: topics, include_tags: true, heartbeat_ms, ...parameters };
  for (const [name, value] of Object.entries(query))
    for (const each of [value ?? []].flat()) address.searchParams.append(name, each);
  const headers = new Headers({ Accept: "text/event-stream" });
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const silence_ms = 2 * Math.max(heartbeat_ms, HEARTBEAT_MIN_MS);
  let connection, pause, pause_ms = PAUSE_FIRST_MS, isClosed = false;

  function close() {
    isClosed = true;
    clearTimeout(pause);
    connection?.abort();
    signal?.removeEventListener("abort", close);
  }

  async function tell(handler, event) {
    try {
      if (!isClosed) await on[handler]?.(event);
    } catch (error) {
      queueMicrotask(() => { throw error; });
    }
  }

  async function heard(promise) { // or silent for twice the heartbeat
    const silent = new Error(`nothing came for ${silence_ms} ms`);
    const watchdog = setTimeout(() => connection.abort(silent), silence_ms);
    try {
      return await promise;
    } catch (cause) {
      throw failure(0, "connection_lost", `the connection is lost: ${cause.message}`, { cause });
    } finally {
      clearTimeout(watchdog);
    }
  }

  async function refusal({ status, headers: fields }, text) {
    const { error } = await new Response(text).json().catch(() => ({})); // none of a proxy
    const after_ms = error?.detail?.retry_after_ms ?? 1000 * Number(fields.get("retry-after"));
    const message = error?.message ?? `an answer with status ${status}`;
    return failure(status, error?.code ?? `http_${status}`, message, { after_ms });
  }

  async function handle(name, data) {
    const event = parse(data);
    if (name === "record") {
      for (const record of event.records) await tell("record", { topic: event.topic, ...record });
    } else if (name !== "error") {
      await tell(name.replace(/-./g, ([, letter]) => letter.toUpperCase()), event);
    } else if (event.code !== 429) { // 429: the stream is slowed down, and goes on
      const status = [401, 403].includes(event.code) || event.topics ? event.code : 503;
      throw failure(status, `stream_${event.code}`, event.error);
    }
  }

  async function stream() {
    if (id) headers.set("Last-Event-ID", id);
    const answer = await heard(fetch(address, { headers, signal: connection.signal }));
    if (answer.status !== 200) throw await refusal(answer, await heard(answer.text()));
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream"))
      throw failure(200, "bad_answer", "the answer is no event stream");
    await tell("status", { state: "open" });
    const reader = answer.body.getReader(), decoder = new TextDecoder();
    let line = "", event = {}; // those that have not come whole
    for (let piece; !(piece = await heard(reader.read())).done;) {
      const lines = decoder.decode(piece.value, { stream: true }).split("\n");
      lines[0] = line + lines[0];
      line = lines.pop();
      for (const each of lines) {
        const [, field, value] = each.match(/^([^:]*):? ?(.*)/s);
        if (field === "data") (event.data ??= []).push(value);
        else if (field) event[field] = value;
        else if (each === "") {
          if (event.data) await handle(event.event, event.data.join("\n"));
          if (isClosed) return;
          if (event.id) [id, pause_ms] = [event.id, PAUSE_FIRST_MS];
          event = {};
        }
      }
    }
    throw failure(0, "stream_ended", "the stream has ended");
  }

  async function run() {
    while (!isClosed) {
      connection = new AbortController();
      const error = await stream().catch((thrown) => thrown);
      connection.abort();
      if (isClosed) return;
      if (!RETRIED.includes(error.status)) {
        if (!on.status) console.error(error);
        await tell("status", { state: "closed", error });
        return close();
      }
      const wait_ms = error.after_ms || pause_ms * (0.5 + Math.random() / 2);
      if (!error.after_ms) pause_ms = Math.min(2 * pause_ms, PAUSE_MAX_MS);
      await tell("status", { state: "waiting", error, pause_ms: wait_ms });
      if (!isClosed) await new Promise((over) => (pause = setTimeout(over, wait_ms)));
    }
  }

  signal?.addEventListener("abort", close);
  if (signal?.aborted) close();
  run();
  return { close, get id() { return id; } };
}
