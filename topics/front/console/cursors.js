// Cursors: the positions of readers that store them on the server. Each cursor is stored in a topic
// cursor:NAME. The last record contains the position in every topic: {topic: [seq, epoch]}.
import { html } from "./lit-html.js";
import { ask, curl, diff, listed, query, topicPath } from "./api.js";
import { action, ago, at, confirmRemoval, count, each, empty, listPage, nameCell, openForm, say,
  table } from "./ui.js";

const PREFIX = "cursor:";
const HEADS = ["Name", "Topic", ["At", "number wide"], ["Lag", "number"], ["Saved", "number wide"],
  ["", "number"]];

/** A row for each topic of each cursor. */
async function made({ topics }) {
  const asked = new Map(); // by topic, so that each is requested once
  const stateOf = (name) => asked.get(name) ?? asked.set(name, listed(name)).get(name);
  const rows = await each(topics, async ({ topic, head_seq, count: saved, last_write_ts }) => {
    const [record] = saved ? (await diff(topic, head_seq - 1, 1)).records : [];
    const places = JSON.parse(record?.data ?? "null") ?? {};
    const cursor = topic.slice(PREFIX.length);
    return Promise.all(Object.entries(places).filter(([, place]) => Array.isArray(place))
      .map(async ([name, [seq, epoch]]) => ({ cursor, topic: name, seq, epoch, places,
        ts: last_write_ts, state: await stateOf(name) })));
  });
  return rows.flatMap((found) => found ?? []);
}

function lagOf({ seq, epoch, state }) {
  if (!state) return "removed";
  if (state.epoch !== epoch) return "recreated";
  return count(state.head_seq - Math.min(Math.max(seq, state.earliest_seq - 1), state.head_seq));
}

function set({ cursor, topic, places, state, ...row }, refresh) {
  let seq = Math.min(row.seq, state.head_seq);
  openForm(`Set ${cursor}`, {
    label: "Set",
    fields: () => html`<p>The reader continues after this seq when it starts again; 0 is the
      beginning. Stop the reader first, because a running reader overwrites this position.</p>
      <label>${topic} is read up to <input type="number" min="0" max=${state.head_seq} required
        autofocus value=${seq} @input=${(event) => { seq = event.target.valueAsNumber; }}>
        <small>the topic has #${state.earliest_seq} to #${state.head_seq}</small></label>`,
    async submit() {
      const data = { ...places, [topic]: [seq, state.epoch] };
      await ask("POST", topicPath(PREFIX + cursor), { records: [{ data }] });
      say("cursor set");
      await refresh();
    },
  });
}

const remove = (cursor, refresh) => confirmRemoval("cursor", cursor,
  "Its reader starts at the beginning.",
  async () => {
    await ask("DELETE", topicPath(PREFIX + cursor));
    await refresh();
  });

const view = (rows, refresh) => html`<div class="wrap">${table(HEADS, rows.map((row) => html`
  <tr data-row tabindex="0">${nameCell(row.cursor)}
    <td class="name"><a href=${at("topics", row.topic)}>${row.topic}</a></td>
    <td class="number wide">${row.seq}</td><td class="number">${lagOf(row)}</td>
    <td class="number wide">${ago(row.ts)}</td>
    <td class="number">${action("set", "write", () => set(row, refresh),
      { kind: "quiet", isOff: !row.state })}${action("delete", "delete",
      () => remove(row.cursor, refresh), { kind: "quiet" })}</td></tr>`))}</div>`;

export const cursorList = () => listPage({
  title: "Cursors",
  prefix: PREFIX,
  path: (asked) => ask("GET", `/v0/topics?${query(asked)}`),
  made,
  view,
  none: () => empty("There are no cursors yet. A reader with a cursor continues where it stopped:",
    "topics cursor set billing orders 0",
    curl("POST", topicPath(`${PREFIX}billing`), { records: [{ data: { orders: [0, 0] } }] })),
});
