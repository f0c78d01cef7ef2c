// Metrics for the pages: rates between two samples, and a history of a few minutes.
import { ask } from "./api.js";

const HISTORY = 40, FRESH_MS = 500;
let before, latest, asking;
export const history = { writes: [], reads: [], errors: [], sync: [] };

/** Return the values of a metric, summed by one of its labels. */
export function by(metrics, name, label) {
  const found = new Map();
  for (const row of metrics?.[name] ?? [])
    found.set(row[label], (found.get(row[label]) ?? 0) + row.value);
  return found;
}

/** Return the quantile of the sync times in ms between two samples, or of all sync times. */
function syncMs(now, then, share) {
  const earlier = new Map((then?.topics_wal_fsync_latency_us.buckets ?? [])
    .map(({ le, count }) => [le, count]));
  const counts = now.topics_wal_fsync_latency_us.buckets
    .map(({ le, count }) =>
      [le === "+Inf" ? Infinity : Number(le), count - (earlier.get(le) ?? 0)]);
  const wanted = share * counts.at(-1)[1];
  let low = 0, below = 0;
  for (const [bound, count] of counts) {
    if (bound !== Infinity && count >= wanted && wanted > below)
      return (low + (bound - low) * ((wanted - below) / (count - below))) / 1000;
    if (bound !== Infinity) low = bound;
    below = count;
  }
  return wanted ? low / 1000 : undefined;
}

function requests(metrics, label, isWanted) {
  let sum = 0;
  for (const [text, value] of by(metrics, "topics_http_requests_total", label))
    if (isWanted(text)) sum += value;
  return sum;
}

/** Return the metrics and the rates since the previous sample (undefined if there is none). */
export async function sample() {
  if (latest && performance.now() - latest.at < FRESH_MS) return latest;
  asking ??= ask("GET", "/v0/metrics").finally(() => { asking = undefined; });
  const metrics = await asking, at = performance.now();
  if (latest?.metrics === metrics) return latest;
  before = latest?.metrics.topics_uptime_ms <= metrics.topics_uptime_ms ? latest : undefined;
  const then = before?.metrics, seconds = before && (at - before.at) / 1000;
  const perSecond = (now, earlier) => (before ? Math.max(now - earlier, 0) / seconds : undefined);
  const rateOf = (label, isWanted) =>
    perSecond(requests(metrics, label, isWanted), requests(then, label, isWanted));
  const heads = by(then, "topics_topic_head_seq", "topic");
  latest = {
    at, metrics,
    writes: rateOf("route", (route) => route === "append"),
    reads: rateOf("route", (route) => route === "diff"),
    errors: rateOf("status", (status) => /^[45]/.test(status)),
    p50: syncMs(metrics, then, 0.5),
    p99: syncMs(metrics, then, 0.99),
    topicRate: (topic, head) => perSecond(head, heads.get(topic) ?? head),
  };
  const { writes, reads, errors, p99 } = latest;
  for (const [name, value] of Object.entries({ writes, reads, errors, sync: p99 ?? 0 }))
    if (writes !== undefined) history[name] = [...history[name], value].slice(-HISTORY);
  return latest;
}
