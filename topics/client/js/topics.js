// topics for web pages and for Node.js 20 or later: one ES module without dependencies. topics.d.ts
// describes all options and events; topics/docs/browser.md has examples.
//
//   append     append records in one request
//   subscribe  receive records as they are appended
//   publish    append on one WebSocket, with many messages in flight
//   work       claim the jobs of a queue and handle them
//
// All four take `url` (default: the origin of the page), `key` and `signal`. They retry while the
// server cannot be reached or is busy. Errors have `status` (the HTTP status, 0 if there was no
// response) and `code`. `subscribe`, `publish` and `work` report their connection to `on.status`:
//
//   state      meaning                                                    members
//   "open"     the server has responded
//   "waiting"  the connection is lost, or the server is busy; it retries  error, pause_ms
//   "closed"   the server refuses, for example a wrong key; no retries    error
//
// Without `on.status`, an error that closes the connection is written to the console. Handlers that
// return a promise are awaited. An exception in a handler is reported as uncaught, and the next
// event is handled.

const RETRIED = [0, 429, 502, 503, 504];
const RETRIED_CODES = ["throttled", "not_ready", "shutting_down"];
const PAUSE_FIRST_MS = 100; // doubled up to PAUSE_MAX_MS, and shortened randomly by up to a half
const PAUSE_MAX_MS = 5000;
const HEARTBEAT_MIN_MS = 1000; // the server raises lower values to this one
const RESPONSE_MS = 30_000; // without a response, a connection counts as lost
const MESSAGE_MAX_CHARS = 16 * 2 ** 20; // the server closes the socket after a longer message
const TOO_LONG = 1009; // the close code after a message that is too long
const CLAIM_WAIT_MS = 25_000; // maximum time that the server waits for a job after a claim
const DELAY_MAX_MS = 300_000; // the longest delay between two deliveries of a failing job
const ERROR_MAX_CHARS = 340; // at most 1,024 bytes of UTF-8, the server's limit
const EXTEND_AGAIN_MS = 1000;
const JOBS_MAX = 1000; // the maximum number of jobs in one request
const LONE_SURROGATE = /[\ud800-\udfff]/gu;

const failure = (status, code, message, more) =>
  Object.assign(new Error(message), { status, code, ...more });
const lost = (cause) =>
  failure(0, "connection_lost", `the connection is lost: ${cause.message}`, { cause });

/** Return a unique message key. Pages loaded by plain http have no `crypto.randomUUID`. */
const uniqueKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)),
  (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Return the pauses between retries, which grow with each failure. */
function pauses() {
  let next_ms = PAUSE_FIRST_MS;
  return {
    reset() { next_ms = PAUSE_FIRST_MS; },
    after(error) {
      if (error.after_ms) return error.after_ms;
      const pause_ms = next_ms * (0.5 + Math.random() / 2);
      next_ms = Math.min(2 * next_ms, PAUSE_MAX_MS);
      return pause_ms;
    },
  };
}

/** Wait for a time, or until the signal aborts. */
const sleep = (ms, signal) => new Promise((resolve) => {
  function end() {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    resolve();
  }
  const timer = setTimeout(end, ms);
  signal?.addEventListener("abort", end);
  if (signal?.aborted) end();
});

/** Return a controller that also aborts with `signal`. */
function linked(signal) {
  const controller = new AbortController(), abort = () => controller.abort(signal.reason);
  signal?.addEventListener("abort", abort, { signal: controller.signal });
  if (signal?.aborted) abort();
  return controller;
}

async function call(handler, ...events) {
  try {
    await handler?.(...events);
  } catch (error) {
    queueMicrotask(() => { throw error; });
  }
}

/** Report that the server refuses the connection. */
async function closed(on, error) {
  if (!on.status) console.error(error);
  await call(on.status, { state: "closed", error });
}

// Requests

/** Throws a TypeError if the URL or the key is malformed. */
function server({ url = globalThis.location?.origin, key }) {
  const base = new URL(url), headers = new Headers();
  if (key) headers.set("Authorization", `Bearer ${key}`);
  return { headers, at: (path) => new URL(path, base) };
}

const topicPath = (name, rest = "") => `/v0/topics/${encodeURIComponent(name)}${rest}`;

/** Return the error for a response. */
function refusal({ status, headers }, text) {
  let error;
  try {
    ({ error } = JSON.parse(text));
  } catch {} // the body may be a proxy's error page
  const after_ms = error?.detail?.retry_after_ms ?? 1000 * Number(headers.get("retry-after"));
  const message = error?.message ?? `a response with status ${status}`;
  return failure(status, error?.code ?? `http_${status}`, message,
    { ...(after_ms && { after_ms }), ...(error?.detail && { detail: error.detail }) });
}

/** Send a request once. Return the JSON of the response. */
async function post({ headers, at }, path, body,
  { signal, parse = JSON.parse, timeout_ms = RESPONSE_MS } = {}) {
  const connection = linked(signal);
  const watchdog = setTimeout(
    () => connection.abort(new Error(`no response for ${timeout_ms} ms`)), timeout_ms);
  const fields = new Headers(headers);
  fields.set("Content-Type", "application/json");
  let response, text;
  try {
    response = await fetch(at(path),
      { method: "POST", headers: fields, body, signal: connection.signal });
    text = await response.text();
  } catch (cause) {
    signal?.throwIfAborted();
    throw lost(cause);
  } finally {
    clearTimeout(watchdog);
    connection.abort(); // removes the listener of `signal`
  }
  if (!response.ok) throw refusal(response, text);
  try {
    return parse(text);
  } catch (cause) {
    throw failure(response.status, "bad_answer", "the response is not JSON", { cause });
  }
}

/** Call `act` again after failures that may be temporary, for `timeout_ms`. */
async function repeat(act, timeout_ms, signal) {
  const pause = pauses(), end = performance.now() + timeout_ms;
  for (;;) {
    try {
      return await act();
    } catch (error) {
      if (!RETRIED.includes(error.status)) throw error;
      const pause_ms = pause.after(error);
      if (performance.now() + pause_ms > end) throw error;
      await sleep(pause_ms, signal);
      signal?.throwIfAborted();
    }
  }
}

/** Append records. A repeated request has the same idempotency key, so it appends them once. */
export async function append({ url, key, topic, signal, timeout_ms = 60_000, parse, ...body }) {
  const to = server({ url, key });
  const text = JSON.stringify({ idempotency_key: uniqueKey(), ...body });
  return repeat(() => post(to, topicPath(topic), text, { signal, parse }), timeout_ms, signal);
}

// Subscribe

/** Receive the records of topics. Each record is received once and in order, even if the server
    restarts. A tombstone reports lost records at their position. */
export function subscribe({ url, key, topics, on = {}, id, signal, heartbeat_ms = 15_000,
  parse = JSON.parse, ...parameters }) {
  const { headers, at } = server({ url, key }), address = at("/v0/watch");
  const query = { topic: topics, include_tags: true, heartbeat_ms, ...parameters };
  for (const [name, value] of Object.entries(query))
    for (const each of [value ?? []].flat()) address.searchParams.append(name, each);
  headers.set("Accept", "text/event-stream");
  const silence_ms = 2 * Math.max(heartbeat_ms, HEARTBEAT_MIN_MS);
  const closing = linked(signal), pause = pauses();
  let connection;

  async function notify(handler, event) {
    if (!closing.signal.aborted) await call(on[handler], event);
  }

  async function received(promise) { // fails after a silence of two heartbeat intervals
    const silent = new Error(`nothing was received for ${silence_ms} ms`);
    const watchdog = setTimeout(() => connection.abort(silent), silence_ms);
    try {
      return await promise;
    } catch (cause) {
      throw lost(cause);
    } finally {
      clearTimeout(watchdog);
    }
  }

  async function handle(name, data) {
    const event = parse(data);
    if (name === "record") {
      for (const record of event.records) await notify("record", { topic: event.topic, ...record });
    } else if (name !== "error") {
      await notify(name.replace(/-./g, ([, letter]) => letter.toUpperCase()), event);
    } else if (event.code !== 429) { // 429: the stream is slowed down and continues
      const status = [401, 403].includes(event.code) || event.topics ? event.code : 503;
      throw failure(status, `stream_${event.code}`, event.error);
    }
  }

  async function stream() {
    if (id) headers.set("Last-Event-ID", id);
    const response = await received(fetch(address, { headers, signal: connection.signal }));
    if (response.status !== 200) throw refusal(response, await received(response.text()));
    if (!response.headers.get("content-type")?.startsWith("text/event-stream"))
      throw failure(200, "bad_answer", "the response is not an event stream");
    await notify("status", { state: "open" });
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let line = "", event = {}; // both may be incomplete at the end of a chunk
    for (let chunk; !(chunk = await received(reader.read())).done;) {
      const lines = decoder.decode(chunk.value, { stream: true }).split("\n");
      lines[0] = line + lines[0];
      line = lines.pop();
      for (const each of lines) {
        const [, field, value] = each.match(/^([^:]*):? ?(.*)/s);
        if (field === "data") (event.data ??= []).push(value);
        else if (field) event[field] = value;
        else if (each === "") {
          if (event.data) await handle(event.event, event.data.join("\n"));
          if (closing.signal.aborted) return;
          if (event.id) {
            id = event.id;
            pause.reset();
          }
          event = {};
        }
      }
    }
    throw failure(0, "stream_ended", "the stream has ended");
  }

  async function run() {
    while (!closing.signal.aborted) {
      connection = linked(closing.signal);
      const error = await stream().catch((thrown) => thrown);
      connection.abort();
      if (closing.signal.aborted) return;
      if (!RETRIED.includes(error.status)) {
        await closed(on, error);
        return closing.abort();
      }
      const pause_ms = pause.after(error);
      await notify("status", { state: "waiting", error, pause_ms });
      await sleep(pause_ms, closing.signal);
    }
  }

  run();
  return { close: () => closing.abort(), get id() { return id; } };
}

// Publish

/** Append on one WebSocket. After a lost connection, all messages without an acknowledgement are
    sent again under their idempotency keys. */
export function publish({ url, key, on = {}, signal, max_pending = 1000,
  max_pending_chars = 8 * 2 ** 20, WebSocket = globalThis.WebSocket, ...common }) {
  const { headers, at } = server({ url, key }), address = at("/v0/ws");
  address.protocol = address.protocol.replace("http", "ws");
  if (!WebSocket) throw new TypeError("there is no WebSocket here: pass the option WebSocket");
  const closing = linked(signal), pause = pauses();
  const pending = new Map(); // by request_id, in the order of `send`
  let chars = 0, last = 0, space, socket;
  let final = failure(0, "closed", "the publisher is closed");

  function connect() {
    try {
      return key ? new WebSocket(address, { headers: Object.fromEntries(headers) })
        : new WebSocket(address);
    } catch (cause) {
      throw key ? new TypeError("a browser cannot send a key on a WebSocket: let a proxy add it,"
        + " or use append", { cause }) : cause;
    }
  }

  const isFull = () => pending.size >= max_pending || chars >= max_pending_chars;
  const transmit = (message) => {
    if (socket.readyState === 1) socket.send(message.text); // otherwise sent after the reconnect
  };

  function settle(message, outcome, value) {
    if (!pending.delete(message.id)) return;
    chars -= message.text.length;
    message[outcome](value);
    if (isFull()) return;
    space?.resolve();
    space = undefined;
  }

  async function later(message, pause_ms) {
    await sleep(pause_ms, closing.signal);
    if (pending.has(message.id)) transmit(message);
  }

  /** Handle a message from the server. Return the error of the socket itself, if it is one. */
  function take({ op, request_id, ...frame }) {
    const { code, message: text, detail } = frame;
    const error = op === "error" ? failure(0, code, text,
      detail && { detail, after_ms: detail.retry_after_ms }) : undefined;
    const message = pending.get(request_id);
    if (message === undefined) return error;
    if (op === "ack") {
      pause.reset();
      settle(message, "resolve", frame);
    } else if (RETRIED_CODES.includes(error?.code)) later(message, pause.after(error));
    else if (error) settle(message, "reject", error);
  }

  /** Return the reason why the socket was closed. */
  const session = () => new Promise((resolve) => {
    const own = socket;
    let reason, wasOpen = false, watchdog;
    function end(error) {
      clearTimeout(watchdog);
      closing.signal.removeEventListener("abort", end);
      own.onopen = own.onmessage = own.onclose = own.onerror = own.watch = undefined;
      own.close();
      resolve(error);
    }
    own.watch = () => { // called while a message is expected
      clearTimeout(watchdog);
      if (wasOpen && !pending.size) return;
      const silent = new Error(`nothing was received for ${RESPONSE_MS} ms`);
      watchdog = setTimeout(() => end(lost(silent)), RESPONSE_MS);
    };
    own.onopen = () => {
      wasOpen = true;
      call(on.status, { state: "open" });
      for (const message of pending.values()) transmit(message);
      own.watch();
    };
    own.onmessage = ({ data }) => {
      reason = take(JSON.parse(data)) ?? reason;
      own.watch();
    };
    own.onclose = ({ code }) => end(reason
      ?? failure(0, "connection_lost", `the socket has closed with code ${code}`,
        { close: code, wasOpen }));
    own.onerror = () => { // in Node.js 20 a refused handshake causes no close event
      if (!wasOpen) own.onclose({ code: 1006 });
    };
    closing.signal.addEventListener("abort", end);
    own.watch();
  });

  /** Return the error of a socket. Browsers hide the reason of a refused handshake, so send a plain
      request, which is refused for the same reason. */
  async function explained(error) {
    if (error.code === "unauthorized") return Object.assign(error, { status: 401 });
    if (error.close === TOO_LONG && pending.size) {
      const longest = [...pending.values()].reduce((one, two) =>
        (two.text.length > one.text.length ? two : one));
      settle(longest, "reject", failure(0, "payload_too_large", "the message is too long"));
    }
    if (error.wasOpen !== false) return error;
    const response = await fetch(at("/v0/ws"), { headers, signal: closing.signal })
      .catch(() => undefined);
    return response && response.status !== 426 ? refusal(response, await response.text()) : error;
  }

  async function run() {
    for (; ; socket = connect()) {
      const error = await explained(await session());
      if (closing.signal.aborted) break;
      if (!RETRIED.includes(error.status)) {
        final = error;
        closing.abort();
        await closed(on, error);
        break;
      }
      const pause_ms = pause.after(error);
      await call(on.status, { state: "waiting", error, pause_ms });
      await sleep(pause_ms, closing.signal);
      if (closing.signal.aborted) break;
    }
    for (const message of [...pending.values()]) settle(message, "reject", final);
  }

  function send(message) {
    return new Promise((resolve, reject) => {
      const id = ++last;
      const text = JSON.stringify({ op: "publish", idempotency_key: uniqueKey(), ...common,
        ...message, request_id: id });
      if (closing.signal.aborted) reject(final);
      else if (text.length > MESSAGE_MAX_CHARS)
        reject(failure(0, "payload_too_large", "the message is longer than 16 MiB"));
      else if (isFull())
        reject(failure(0, "too_many_pending", "too many messages are pending: await `ready`"));
      else {
        const entry = { id, text, resolve, reject };
        pending.set(id, entry);
        chars += text.length;
        transmit(entry);
        if (pending.size === 1) socket.watch?.();
      }
    });
  }

  function whenReady() {
    if (!isFull()) return Promise.resolve();
    if (!space) {
      space = {};
      space.promise = new Promise((resolve) => { space.resolve = resolve; });
    }
    return space.promise;
  }

  socket = connect();
  run();
  return {
    send,
    get ready() { return whenReady(); },
    get pending() { return pending.size; },
    close: () => closing.abort(),
  };
}

// Work

/** Claim the jobs of a queue and call `on.job` with each, up to `concurrency` at the same time. A
    job is acknowledged when its handler has finished, and delivered again if the handler throws.
    Leases are extended while handlers run. */
export function work({ url, key, queue, on, signal, concurrency = 1, lease_ms = 30_000,
  node = `js:${uniqueKey()}`, parse = JSON.parse }) {
  const to = server({ url, key });
  if (!(concurrency >= 1 && concurrency <= JOBS_MAX))
    throw new RangeError(`concurrency must be between 1 and ${JOBS_MAX}`);
  const closing = linked(signal), ended = new AbortController();
  const held = new Set(), pause = pauses();
  let wake = () => {}, isOpen = false;

  const request = (what, body, more) => post(to, topicPath(queue, `/${what}`),
    JSON.stringify({ node, ...body }), more);
  const leases = (jobs, fields) => ({ seqs: jobs.map(({ job }) => job.$seq),
    lease_ids: jobs.map(({ job }) => job.lease_id), ...fields });
  const lose = (lease) => lease.lost.abort(failure(0, "lease_lost", "the lease is lost"));
  const deadline = () => performance.now() + lease_ms;

  function nack(job, error) {
    const delay_ms = Math.min(1000 * 2 ** Math.min(job.deliveries - 1, 16), DELAY_MAX_MS);
    return { delay_ms: Math.round(delay_ms * (0.8 + 0.4 * Math.random())),
      error: String(error).slice(0, ERROR_MAX_CHARS).replace(LONE_SURROGATE, "\ufffd") };
  }

  async function handle(job) {
    const lease = { job, lost: new AbortController(), until: deadline() };
    held.add(lease);
    let what = "ack", fields = {};
    try {
      await on.job(job, lease.lost.signal);
    } catch (error) {
      [what, fields] = ["nack", nack(job, error)];
      if (on.failed) await call(on.failed, { job, error });
      else console.error(error);
    }
    try {
      if (!lease.lost.signal.aborted)
        await repeat(() => request(what, leases([lease], fields)), lease_ms, lease.lost.signal);
    } catch (error) {
      if (!lease.lost.signal.aborted && !RETRIED.includes(error.status)) await stop(error);
    }
    held.delete(lease);
    wake();
  }

  async function stop(error) {
    if (closing.signal.aborted) return;
    closing.abort();
    await closed(on, error);
  }

  /** Extend all leases. Return whether the server has responded. */
  async function extend() {
    const jobs = [...held], until = deadline();
    if (!jobs.length) return true;
    try {
      const { skipped } = await request("extend", leases(jobs, { lease_ms }),
        { timeout_ms: lease_ms / 3 });
      for (const lease of jobs) {
        if (skipped.includes(lease.job.$seq)) lose(lease);
        else lease.until = until;
      }
      return true;
    } catch {
      for (const lease of jobs) if (lease.until <= performance.now()) lose(lease);
      return false;
    }
  }

  async function keep() {
    for (let pause_ms = lease_ms / 3; !ended.signal.aborted;) {
      await sleep(pause_ms, ended.signal);
      pause_ms = await extend() ? lease_ms / 3 : Math.min(lease_ms / 3, EXTEND_AGAIN_MS);
    }
  }

  const freed = () => new Promise((resolve) => { wake = resolve; });

  async function claim() {
    const max = concurrency - held.size;
    if (max <= 0) return freed();
    try {
      const { claimed } = await request("claim", { max, lease_ms, wait_ms: CLAIM_WAIT_MS },
        { signal: closing.signal, parse, timeout_ms: CLAIM_WAIT_MS + RESPONSE_MS });
      pause.reset();
      if (!isOpen) await call(on.status, { state: "open" });
      isOpen = true;
      for (const job of claimed) handle({ topic: queue, ...job });
    } catch (error) {
      if (closing.signal.aborted) return;
      if (!RETRIED.includes(error.status)) return stop(error);
      isOpen = false;
      const pause_ms = pause.after(error);
      await call(on.status, { state: "waiting", error, pause_ms });
      await sleep(pause_ms, closing.signal);
    }
  }

  async function run() {
    keep();
    while (!closing.signal.aborted) await claim();
    while (held.size) await freed();
    ended.abort();
  }

  const finished = run();
  return { close() { closing.abort(); return finished; }, finished };
}
