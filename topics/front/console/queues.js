// Queues: the number of jobs in each; and one queue with its jobs, leases and dead letters.
import { html, nothing } from "./lit-html.js";
import { ask, curl, diff, listed, query, topicPath, topicState } from "./api.js";
import { action, ago, at, attempt, count, duration, each, empty, mistake, nameCell, problem, say,
  search, stat, table, tabs, update, visible } from "./ui.js";
import { by, sample } from "./metrics.js";
import { rowList, rowOf } from "./records.js";

const DETAILS_MAX = 100, DETAILS_MS = 10_000, PAGE = 50, REDRIVE_MAX = 10_000;

const oldestOf = async ({ topic, count: jobs, earliest_seq }) => (jobs
  ? (await diff(topic, earliest_seq - 1, 1, { include_meta: false })).records[0]?.$ts : undefined);

export function queueList() {
  let filter = "", now, askedAt = -DETAILS_MS;
  const details = new Map();
  const names = () => [...by(now, "topics_topic_queue_ready", "topic").keys()]
    .filter((name) => name.includes(filter));

  async function refresh() {
    now = (await sample()).metrics;
    if (performance.now() - askedAt < DETAILS_MS) return;
    askedAt = performance.now();
    update();
    await each(names().slice(0, DETAILS_MAX), async (name) => {
      const state = await topicState(name);
      details.set(name, { dead: state.config.dead_letter, oldest: await oldestOf(state) });
    });
  }

  const HEADS = ["Name", ["Ready", "number"], ["In flight", "number"], ["Delayed", "number wide"],
    ["Dead", "number"], ["Oldest", "number wide"]];
  function rows() {
    const of = (field) => by(now, `topics_topic_${field}`, "topic"), records = of("records_live");
    const [ready, held, delayed] = ["queue_ready", "queue_in_flight", "queue_delayed"].map(of);
    return names().map((name) => {
      const { dead, oldest } = details.get(name) ?? {}, letters = records.get(dead) ?? 0;
      return html`<tr>${nameCell(name, at("queues", name))}
        <td class="number">${count(ready.get(name))}</td>
        <td class="number">${count(held.get(name))}</td>
        <td class="number wide">${count(delayed.get(name))}</td>
        <td class="number">${letters ? html`<a class="bad" href=${at("queues", name, "dead")}>${
          count(letters)}</a>` : 0}</td><td class="number wide">${ago(oldest)}</td></tr>`;
    });
  }

  const CONFIG = { type: "queue", max_deliveries: 5, dead_letter: "jobs.dead" };
  const none = () => (filter ? empty(`No queue has “${filter}” in its name.`)
    : empty("There are no queues yet. Create one with a topic for jobs that fail:",
      "topics create jobs --queue --set max_deliveries=5 --set dead_letter=jobs.dead",
      curl("PUT", topicPath("jobs"), CONFIG)));
  const view = function view() {
    return html`<div class="title"><h1>Queues</h1>
      ${search("name contains", filter, (value) => { filter = value; update(); })}</div>
      ${problem(this.error)}${!now ? nothing : names().length ? table(HEADS, rows()) : none()}
      ${now?.topics_topic_metrics_truncated ? html`<p class="hint">Some queues may be missing:
        the metrics contain only the first <code>TOPICS_METRICS_TOPICS</code> topics by name.</p>`
        : nothing}`;
  };

  return { title: "Queues", refresh, view };
}

export function queuePage(name, tab) {
  const TABS = { jobs: "Jobs", leases: "Leases", dead: "Dead letters" };
  const here = tab in TABS ? tab : "jobs", redrive = {};
  let state, dead, leases, jobs, oldest;

  async function refresh() {
    const now = await topicState(name), target = now.config.dead_letter;
    if (!now.queue) throw mistake("the topic is not a queue", "not_a_queue");
    dead = target ? await listed(target) ?? { topic: target, count: 0 } : undefined;
    [oldest, state] = [await oldestOf(now), now];
    if (here !== "dead")
      ({ leases } = await ask("GET", topicPath(name, `/leases?${query({ page_size: 500 })}`)));
    if (here !== "leases") await readJobs(here === "dead" ? dead : now);
  }

  async function readJobs(topic) {
    const open = new Set((jobs ?? []).filter(({ isOpen }) => isOpen).map(({ seq }) => seq));
    const { records } = topic?.count ? await diff(topic.topic, topic.earliest_seq - 1, PAGE)
      : { records: [] };
    jobs = records.map((job) => ({ ...rowOf(topic.topic, job), isOpen: open.has(job.$seq) }));
  }

  async function move(limit) {
    let moved = 0, done;
    do {
      done = await ask("POST", topicPath(dead.topic, "/redrive"), { limit });
      moved += done.moved;
    } while (limit > 1 && done.moved && done.remaining);
    say(`${count(moved)} moved, ${count(done.remaining)} remaining`);
    await refresh();
    if (done.skipped) throw mistake(`${count(done.skipped)} skipped`, done.reason);
  }

  const rest = (all) => (all > jobs.length ? html`<p class="hint">The oldest ${count(jobs.length)}
    of ${count(all)}.</p>` : nothing);

  function jobList() {
    const holders = new Map(leases.map(({ $seq, node }) => [$seq, node]));
    const aside = ({ seq }) => html`<span class="held">${
      holders.has(seq) ? `held by ${visible(holders.get(seq))}` : nothing}</span>`;
    return jobs.length ? html`${rowList(jobs, { aside })}${rest(state.count)}`
      : empty("There are no jobs. Append one:",
        `topics append ${name} '{"url": "s3://b/x.png"}'`,
        curl("POST", topicPath(name), { records: [{ data: { url: "s3://b/x.png" } }] }));
  }

  const HEADS = ["Job", "Held by", ["Remaining", "number"], ["Delivery", "number"],
    ["Last error", "wide"]];
  const leaseList = () => (leases.length ? html`<div class="wrap">${table(HEADS, leases.map(
    (lease) => html`<tr><td>#${lease.$seq}</td>${nameCell(lease.node)}
    <td class="number">${duration(lease.deadline - Date.now())}</td>
    <td class="number">${count(lease.deliveries)}</td>
    <td class="name wide" title=${visible(lease.last_error) ?? nothing}>${
      visible(lease.last_error) ?? nothing}</td></tr>`))}</div>`
    : empty("No job is leased. A worker leases its jobs:", `topics work ${name} -- cat`,
      curl("POST", topicPath(name, "/claim"), { node: "worker-1" })));

  function deadList() {
    if (!dead)
      return empty("Jobs that fail are delivered again forever. Set a topic for dead letters:",
        `topics config ${name} max_deliveries=5 dead_letter=${name}.dead`,
        curl("PUT", topicPath(name), { max_deliveries: 5, dead_letter: `${name}.dead` }));
    if (!dead.count) return empty(`There are no dead letters in ${dead.topic}.`);
    const aside = ({ record: { meta = "null" } }) => html`<span class="reason">${
      visible(JSON.parse(meta)?.$dead_letter_error?.toString()) ?? "no error reported"}</span>`;
    const button = (label, limit, kind) => action(label, "write",
      () => attempt(redrive, () => move(limit)), { kind, isOff: redrive.isBusy });
    return html`<div class="bar"><span>${count(dead.count)} in
        <a href=${at("topics", dead.topic, "browse")}>${dead.topic}</a></span>
        <span class="rest"></span>${button("Redrive one", 1)}
        ${button("Redrive all", REDRIVE_MAX, "primary")}</div>
      ${problem(redrive.error)}${rowList(jobs, { aside })}${rest(dead.count)}
      <p class="hint">A redrive moves the oldest dead letters first, each to the queue that it
        came from.</p>`;
  }

  function figures({ queue: { ready, in_flight, delayed }, config }) {
    const { max_deliveries, lease_ms } = config;
    return html`<dl class="stats">
      ${stat("Ready", count(ready), oldest ? `oldest job: ${ago(oldest)}` : "")}
      ${stat("In flight", count(in_flight), `lease: ${duration(lease_ms)}`)}
      ${stat("Delayed", count(delayed))}
      ${stat("Dead letters", count(dead?.count ?? 0), max_deliveries === 1 ? "after 1 delivery"
        : max_deliveries ? `after ${count(max_deliveries)} deliveries` : "deliveries: no limit")}
      </dl>`;
  }

  function view() {
    const inner = { jobs: jobList, leases: leaseList, dead: deadList }[here];
    return html`<div class="title"><h1 class="name">${name}</h1>
        <a class="badge accent" href=${at("topics", name)}>topic: records, config</a></div>
      ${problem(this.error)}${!state ? nothing : html`${figures(state)}
        ${tabs("Views of the queue", Object.entries(TABS).map(([each, title]) =>
          [title, at("queues", name, each), each === here]))}
        ${(here === "leases" ? leases : jobs) ? inner() : nothing}`}`;
  }

  return { title: name, refresh, view };
}
