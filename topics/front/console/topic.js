// A topic: its records live and page by page, a form for an append, and its config.
import { html, nothing } from "./lit-html.js";
import { ask, curl, diff, lacks, noted, query, session, streamLost, topicPath, topicState, word }
  from "./api.js";
import { action, ago, at, attempt, bytes, code, confirmRemoval, copyButton, count, duration, empty,
  mistake, moment, openForm, problem, say, search, stat, tabs, update } from "./ui.js";
import { parseRecords } from "./json.js";
import { bound, kept, lossOf, noteOf, passes, rowList, rowOf } from "./records.js";
import { TIME, read } from "./units.js";
import { configForm, isInvalid, newForm, written } from "./config.js";
import { subscribe } from "./topics.js";
import { FIRST_RECORD } from "./topic_list.js";

const VIEWS = { live, browse, publish, config };
const LAST = 100; // records with which the live page begins
const PAGE = 100, PAGE_MAX = 1000;

export function topicPage(name, tab, parameters) {
  const here = tab in VIEWS ? tab : "live", topic = { name, parameters, state: undefined, refresh };
  const inner = VIEWS[here](topic);

  async function refresh() {
    topic.state = await topicState(name);
    inner.begin?.(topic.state);
  }

  function figures({ count: records, earliest_seq, head_seq, next_seq, last_write_ts, config: own,
    bytes: size }) {
    const bounds = [own.ttl_ms && duration(own.ttl_ms), own.cap_bytes && bytes(own.cap_bytes),
      own.cap_records && `${count(own.cap_records)} records`].filter(Boolean);
    return html`<dl class="stats">${stat("Records", count(records), bytes(size))}
      ${stat("Seqs", records ? `${earliest_seq}–${head_seq}` : "none", `next is ${next_seq}`)}
      ${stat("Last write", last_write_ts ? `${ago(last_write_ts)} ago` : "never",
        last_write_ts ? moment(last_write_ts) : "")}
      ${stat("Class", own.durability, `kept ${bounds.join(", ") || "forever"}`)}</dl>`;
  }

  function view() {
    const type = topic.state?.type;
    return html`<div class="title"><h1 class="name">${name}</h1>${type === "queue"
        ? html`<a class="badge accent" href=${at("queues", name)}>queue: jobs, dead letters</a>`
        : type ? html`<span class="badge">${type}</span>` : nothing}</div>
      ${problem(this.error)}${topic.state ? figures(topic.state) : nothing}
      ${tabs("Views of the topic", Object.keys(VIEWS).map((each) =>
        [each[0].toUpperCase() + each.slice(1), at("topics", name, each), each === here]))}
      ${inner.view()}`;
  }

  return { title: name, refresh, view, close: inner.close, pause: inner.pause };
}

// Live

function live({ name, parameters }) {
  const from = parameters.get("from") ?? "last";
  let rows = [], held = [], dropped = 0, isPaused = false, tag = "", text = "";
  let subscription, status = "connecting", error;

  function take(row) {
    const list = isPaused ? held : rows;
    list.unshift(row);
    dropped += bound(list);
    update();
  }

  function pause(isWanted = !isPaused) {
    isPaused = isWanted;
    if (!isPaused) {
      [rows, held] = [[...held, ...rows], []];
      dropped += bound(rows);
    }
    update();
  }

  /** Subscribe, unless already subscribed. Each poll that finds the topic calls this, because the
      topic may have been recreated. */
  function begin({ head_seq }) {
    if (status !== "connecting") return;
    status = "asked";
    const seq = from === "last" ? Math.max(head_seq - LAST, 0) : Number(from) || 0;
    const place = from === "tail" ? { tail: true } : { from_seq: seq };
    const options = { key: session.key, topics: [name], ...place, parse: parseRecords };
    subscription = subscribe({ ...options, on: {
      record: ({ topic, ...record }) => take(rowOf(topic, record)),
      tombstone: (gap) => take(lossOf(gap)),
      topicDeleted() {
        take(noteOf("the topic was deleted"));
        subscription.close();
        status = "connecting";
      },
      status(event) {
        status = event.error?.status === 404 ? "connecting" : event.state;
        error = status === "closed" ? noted(event.error) : undefined;
        streamLost(status === "waiting");
        update();
      },
    } });
  }

  const choose = (event) => {
    location.hash = `${at("topics", name, "live")}?${query({ from: event.target.value })}`;
  };
  const STARTS = [["last", `the last ${LAST}`], ["tail", "now"], ["0", "the beginning"]];
  const starts = STARTS.some(([value]) => value === from) ? STARTS
    : [...STARTS, [from, `after #${from}`]];
  const SIGNS = { open: "live", waiting: "reconnecting", asked: "connecting" };

  function view() {
    const shown = tag || text ? rows.filter((row) => passes(row, tag, text)) : rows;
    return html`<div class="bar">
      <button type="button" aria-pressed=${isPaused} title="p" @click=${() => pause()}>${
        isPaused ? `Resume${held.length ? ` · ${count(held.length)} new` : ""}` : "Pause"}</button>
      <label>from <select @change=${choose}>${starts.map(([value, label]) => html`
        <option value=${value} ?selected=${value === from}>${label}</option>`)}</select></label>
      ${search("tag, or eu:*", tag, (value) => { tag = value; update(); }, { isMain: false })}
      ${search("text", text, (value) => { text = value; update(); })}
      <span class="sign ${status}">${SIGNS[status] ?? status}</span></div>
      ${problem(error)}
      ${shown.length ? rowList(shown, { touched: () => pause(true) })
        : rows.length ? empty("No row passes the filters.") : FIRST_RECORD(name)}
      ${kept(rows, dropped)}`;
  }

  return { begin, view, pause, close: () => subscription?.close() };
}

// Browse

function browse({ name, parameters }) {
  const state = {};
  let rows, from, page;

  async function show(from_seq) {
    page = await diff(name, from_seq, PAGE);
    [from, rows] = [from_seq, page.records.map((record) => rowOf(name, record))];
    if (page.tombstone) rows.unshift(lossOf(page.tombstone));
    history.replaceState(null, "", `${at("topics", name, "browse")}?${query({ from })}`);
  }

  /** Return the seq after which the last PAGE records below `seq` begin. There may be gaps of any
      size. Fewer records follow after `few`. After `many`, more records follow than fit into one
      response. */
  async function before(seq) {
    const first = (await topicState(name)).earliest_seq - 1;
    let few = seq - 1, many = first - 1, span = PAGE;
    while (few > first && few - many > 1) {
      const low = Math.max(seq - 1 - span, Math.floor((few + many) / 2), first);
      const found = await diff(name, low, PAGE_MAX, { include_meta: false });
      const below = found.records.filter(({ $seq }) => $seq < seq);
      if (!found.caught_up && found.next_from_seq < seq - 1) many = low;
      else if (below.length > PAGE) return below.at(-PAGE - 1).$seq;
      else few = low;
      span *= 4;
    }
    return Math.max(few, first);
  }

  /** Return the seq after which all records have at least this time. */
  async function since(ts) {
    const { earliest_seq, head_seq } = await topicState(name);
    let low = earliest_seq - 1, high = head_seq;
    while (low < high) {
      const middle = Math.floor((low + high) / 2);
      const [record] = (await diff(name, middle, 1, { include_meta: false })).records;
      if (record?.$ts < ts) low = record.$seq;
      else high = middle;
    }
    return low;
  }

  const showAfter = (search) => attempt(state, async () => show(await search()));
  const newest = async () => before((await topicState(name)).head_seq + 1);
  const given = parameters.get("from");
  showAfter(given === null ? newest : () => Number(given) || 0);

  const toSeq = ({ target: { valueAsNumber } }) =>
    valueAsNumber >= 0 && showAfter(() => Math.max(valueAsNumber - 1, 0));
  const toTime = ({ target: { value } }) =>
    value && showAfter(() => since(new Date(value).getTime()));
  const button = (label, search, isOff) => html`<button type="button"
    ?disabled=${state.isBusy || isOff} @click=${() => showAfter(search)}>${label}</button>`;

  function view() {
    const isFirst = !page || from < page.earliest_seq, isLast = !page || page.caught_up;
    const older = () => before((rows.find(({ record }) => record)?.seq ?? from + 1));
    return html`<div class="bar">
      <label>seq <input type="number" min="0" data-filter @change=${toSeq}></label>
      <label>time <input type="datetime-local" step="1" @change=${toTime}></label>
      <span class="pages">${button("Oldest", () => 0, isFirst)}${button("Older", older, isFirst)}
        ${button("Newer", () => page.next_from_seq, isLast)}
        ${button("Newest", newest, false)}</span></div>
      ${problem(state.error)}
      ${!page ? nothing : rows.length ? rowList(rows)
        : page.head_seq ? empty("There are no records here.") : FIRST_RECORD(name)}
      ${rows?.length ? html`<p class="hint">${count(page.records.length)} records, the oldest first
        ${copyButton("copy curl", () => curl("POST", topicPath(name, "/diff"),
          { from_seq: from, limit: PAGE, include_tags: true }))}</p>` : nothing}`;
  }

  return { view };
}

// Publish

const DRAFT = "topics-draft:"; // the name of a topic follows; stored in this tab until the append
const EMPTY = { data: "", meta: "", tag: "", node: "", key: "", delay: "" };

function publish(topic) {
  const { name } = topic, state = {};
  const draft = { ...EMPTY, ...JSON.parse(sessionStorage.getItem(DRAFT + name)) };
  let receipt;

  function keep() {
    try {
      sessionStorage.setItem(DRAFT + name, JSON.stringify(draft));
      state.isTooLong = false;
    } catch { // longer than a tab's storage
      sessionStorage.removeItem(DRAFT + name);
      state.isTooLong = true;
    }
  }

  /** `data` and `meta` are sent as they were typed, because JSON.parse would change numbers. */
  function body() {
    const members = (fields) => Object.entries(fields).filter(([, value]) => value !== "")
      .map(([field, value]) => `,${JSON.stringify(field)}:${JSON.stringify(value)}`).join("");
    const { data, meta, tag, node, key, delay } = draft;
    const more = members({ tag, delay_ms: delay.trim() === "" ? "" : read(TIME, delay) });
    return `{"records":[{"data":${data.trim()}${meta.trim() && `,"meta":${meta.trim()}`}${more}}]${
      members({ node, idempotency_key: key })}}`;
  }

  async function send() {
    receipt = undefined;
    for (const field of draft.meta.trim() ? ["data", "meta"] : ["data"]) {
      try {
        JSON.parse(draft[field]);
      } catch (error) {
        throw mistake(`${field} is not valid JSON: ${error.message}`);
      }
    }
    receipt = await ask("POST", topicPath(name), body());
    sessionStorage.removeItem(DRAFT + name);
    await topic.refresh();
  }
  const submit = (event) => {
    event.preventDefault();
    return state.isBusy || lacks("write") ? undefined : attempt(state, send);
  };
  const press = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
  };

  const set = (member) => (event) => {
    draft[member] = event.target.value;
    keep();
    update();
  };
  const field = (label, member) => html`<label>${label}
    <input autocomplete="off" spellcheck="false" .value=${draft[member]} @input=${set(member)}>
    </label>`;
  const area = (label, member, rows, example, isMain) => html`<label>${label}
    <textarea rows=${rows} spellcheck="false" ?data-filter=${isMain} placeholder=${example}
      .value=${draft[member]} @input=${set(member)}></textarea></label>`;
  const receipted = () => html`<p class="done" role="status">${receipt.deduped
    ? "Already appended" : "Appended"} as <a href="${at("topics", name, "browse")}?${
    query({ from: receipt.first_seq - 1 })}">#${receipt.first_seq}</a></p>`;

  function view() {
    return html`<form class="form" @submit=${submit} @keydown=${press}>
      ${area("Data, as JSON", "data", 8, '{"sku": "A1"}', true)}
      ${area("Meta, as JSON (optional)", "meta", 2, '{"source": "console"}', false)}
      <div class="fields">${field("Tag", "tag")}${field("Node", "node")}
        ${field("Idempotency key", "key")}
        ${topic.state?.queue ? field("Delay, such as 10m", "delay") : nothing}</div>
      ${state.isTooLong ? html`<p class="hint">This draft is too long to be kept when you leave the
        page.</p>` : nothing}
      ${problem(state.error)}${receipt ? receipted() : nothing}
      <div class="buttons">${action("Append", "write", submit,
          { kind: "primary", isOff: state.isBusy })}
        ${copyButton("copy curl", () => curl("POST", topicPath(name), body()))}
        <span class="hint"><kbd>Ctrl</kbd> <kbd>Enter</kbd></span></div></form>`;
  }

  return { view };
}

// Config

function config(topic) {
  const { name } = topic, state = {}, form = newForm();

  /** Save the changes. Ask first if they remove records. */
  async function save() {
    const patch = { ...form.patch }, put = () => change(patch);
    const { dropped } = await ask("PUT", topicPath(name, "?dry_run=true"), patch);
    if (!dropped) return put();
    const records = dropped === 1 ? "1 record" : `${count(dropped)} records`;
    openForm(`Remove ${records}?`, { label: `Remove ${records}`, kind: "danger", submit: put,
      fields: () => html`<p>The new limits of <b class="mono">${name}</b> remove the oldest ${
        records} now${topic.state.queue ? ", including leased jobs" : ""}. They cannot be
        restored.</p>` });
  }
  async function change(patch) {
    const { dropped } = await ask("PUT", topicPath(name), patch);
    for (const [field, value] of Object.entries(patch)) // fields edited since then stay changed
      if (form.patch[field] === value) delete form.patch[field];
    await topic.refresh();
    say(dropped ? `saved; ${count(dropped)} removed` : "saved");
  }
  const submit = (event) => {
    event.preventDefault();
    return isInvalid(form) ? undefined : attempt(state, save);
  };
  const remove = () => confirmRemoval("topic", name,
    "This removes all its records, and all routers from it and to it.", async () => {
      await ask("DELETE", topicPath(name));
      location.hash = "#/topics";
    });

  function view() {
    if (!topic.state) return nothing;
    const { patch } = form, own = topic.state.config;
    const changes = Object.entries(patch)
      .map(([field, value]) => ` ${word(`${field}=${written(field, value)}`)}`);
    const isSame = changes.length === 0;
    return html`<form class="form" @submit=${submit}>${configForm(own, form, update)}
      ${problem(state.error)}${isSame ? nothing : code(`topics config ${name}${changes.join("")}`)}
      <div class="buttons">${action("Save", "admin", submit,
          { kind: "primary", isOff: isSame || isInvalid(form) || state.isBusy })}
        ${copyButton("copy curl", () => curl("PUT", topicPath(name), isSame ? own : patch))}
        <span class="rest"></span>
        ${action("Delete the topic", "delete", remove, { kind: "danger" })}</div></form>`;
  }

  return { view };
}
