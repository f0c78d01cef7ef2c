// Overview: the state of the server, and what needs attention.
import { html, nothing } from "./lit-html.js";
import { topicState } from "./api.js";
import { at, bytes, count, duration, each, nameCell, problem, rate, sparkline, stat, table }
  from "./ui.js";
import { by, history, sample } from "./metrics.js";
import { FIRST_RECORD } from "./topic_list.js";

const STATES = ["down", "starting", "recovering", "ready", "read only", "stopped", "no space",
  "damaged", "directory lost"]; // by the number of ShardState
const READY = 3, QUEUES_MAX = 50, BUSIEST = 8, LAG_MS = 10_000;
const CONFIGS_EVERY = 15; // refreshes

const times = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function overview() {
  let now, refreshes = 0;
  const deadLetters = new Map(); // by queue: its dead-letter topic, or null

  async function refresh() {
    now = await sample();
    if (refreshes++ % CONFIGS_EVERY === 0) deadLetters.clear();
    const queues = [...by(now.metrics, "topics_topic_queue_ready", "topic").keys()];
    await each(queues.slice(0, QUEUES_MAX).filter((name) => !deadLetters.has(name)),
      async (name) => deadLetters.set(name, (await topicState(name)).config.dead_letter));
  }

  /** Yield each problem: the object, its state, and the address of a page about it. */
  function* problems(metrics) {
    const of = (name, label) => by(metrics, `topics_${name}`, label);
    for (const [shard, state] of of("shard_state", "shard"))
      if (state !== READY) yield [`shard ${shard}`, STATES[state] ?? `state ${state}`, "#/"];
    const records = of("topic_records_live", "topic"), seen = new Set();
    for (const [queue, topic] of deadLetters)
      if (records.get(topic) && !seen.has(topic)) {
        seen.add(topic);
        yield [topic, times(records.get(topic), "dead letter"), at("queues", queue, "dead")];
      }
    for (const [router, lag_ms] of of("router_lag_ms", "router"))
      if (lag_ms >= LAG_MS) yield [router, `router, ${duration(lag_ms)} behind`, "#/routers"];
    for (const [process, restarts] of of("process_restarts_total", "process"))
      if (restarts) yield [process, times(restarts, "restart"), "#/"];
    if (metrics.topics_log_lines_dropped_total)
      yield ["log", times(metrics.topics_log_lines_dropped_total, "dropped line"), "#/"];
  }

  function attention({ metrics }) {
    const rows = [...problems(metrics)];
    return html`<section><h2>Attention</h2>${rows.length ? html`<ul class="attention">${rows.map(
      ([name, what, href]) => html`<li><a data-row href=${href}><span class="name">${name}</span>
        <span>${what}</span></a></li>`)}</ul>`
      : html`<p class="calm">Nothing: all shards are ready, there are no dead letters, and no
        router lags.</p>`}
      </section>`;
  }

  function busiest({ metrics, topicRate }) {
    const of = (name) => by(metrics, `topics_topic_${name}`, "topic");
    const [heads, records, sizes] = ["head_seq", "records_live", "bytes_live"].map(of);
    const rows = [...heads].map(([topic, head]) => ({ topic, fresh: topicRate(topic, head) ?? 0 }))
      .sort((one, two) => two.fresh - one.fresh || sizes.get(two.topic) - sizes.get(one.topic));
    if (rows.length === 0) return FIRST_RECORD();
    const titles = ["Topic", ["New/s", "number"], ["Records", "number"], ["Bytes", "number wide"]];
    return html`<section><h2>Busiest topics</h2>
      ${table(titles, rows.slice(0, BUSIEST).map((row) => html`<tr>
        ${nameCell(row.topic, at("topics", row.topic))}<td class="number">${rate(row.fresh)}</td>
        <td class="number">${count(records.get(row.topic))}</td>
        <td class="number wide">${bytes(sizes.get(row.topic))}</td></tr>`))}
      ${rows.length > BUSIEST ? html`<p class="hint"><a href="#/topics">All topics</a></p>`
        : nothing}</section>`;
  }

  function processes({ metrics }) {
    const of = (name) => by(metrics, `topics_process_${name}`, "process");
    const [memory, cpu, files] = ["own_bytes", "cpu_ms_total", "open_files"].map(of);
    return html`<section><h2>Processes</h2>${table(["Process", ["Memory", "number"],
      ["Processor time", "number"], ["Open files", "number wide"]], [...memory].map(
      ([process, size]) => html`<tr>${nameCell(process)}<td class="number">${bytes(size)}</td>
        <td class="number">${duration(cpu.get(process))}</td>
        <td class="number wide">${count(files.get(process))}</td></tr>`))}</section>`;
  }

  function charts(now) {
    const rates = ["writes", "reads", "errors"].map((each) => stat(`${each[0].toUpperCase()}${
      each.slice(1)}/s`, rate(now[each]), sparkline(history[each], `${each} per second`)));
    const sync = now.p50 === undefined ? html`–<small>no syncs</small>`
      : html`${duration(now.p50)}<small>p99 ${duration(now.p99)}</small>`;
    return html`<dl class="stats">${rates}
      ${stat("Sync p50", sync, sparkline(history.sync, "time of syncs, p99"))}</dl>`;
  }

  function figures(metrics) {
    const of = (name, label) => [...by(metrics, name, label)].filter(([, value]) => value);
    const shown = (rows) => rows.map(([kind, value]) => `${count(value)} ${kind}`).join(", ");
    const streams = of("topics_streams", "kind");
    const used = ["log", "segment", "blob", "checkpoint"]
      .reduce((sum, each) => sum + metrics[`topics_${each}_bytes`], 0);
    return html`<dl class="stats">
      ${stat("Topics", count(metrics.topics_topics), shown(of("topics_topics_by_class", "class")))}
      ${stat("Records", count(metrics.topics_records_live), bytes(metrics.topics_bytes_live))}
      ${stat("Streams", count(streams.reduce((sum, [, value]) => sum + value, 0)),
        shown(streams) || `${count(metrics.topics_connections_open)} connections`)}
      ${stat("Disk free", bytes(metrics.topics_disk_free_bytes), `${bytes(used)} used`)}</dl>`;
  }

  function view() {
    const failed = problem(this.error);
    if (!now) return html`<div class="title"><h1>Overview</h1></div>${failed}`;
    const { metrics } = now, isReady = metrics.topics_ready;
    return html`<div class="title"><h1>Overview</h1>
        <span class="badge ${isReady ? "good" : "bad"}">${isReady ? "ready" : "not ready"}</span>
        <span class="hint">version ${metrics.topics_build_info[0].version}, up
          ${duration(metrics.topics_uptime_ms)}</span></div>
      ${failed}${charts(now)}${figures(metrics)}
      <div class="columns"><div>${busiest(now)}</div>
        <div>${attention(now)}${processes(now)}</div></div>`;
  }

  return { title: "Overview", refresh, view };
}
