// Topics: the topics whose names begin with the filter, and a form for a new topic.
import { html, nothing } from "./lit-html.js";
import { ask, curl, query, topicPath, topicState } from "./api.js";
import { action, ago, at, bytes, code, count, each, empty, listPage, mistake, nameCell, openForm,
  table } from "./ui.js";
import { configForm, isInvalid, newForm } from "./config.js";

const CONFIGS_MAX = 2000;
const configs = new Map(); // by topic, because the list does not contain the type

export const FIRST_RECORD = (name = "orders") => empty("There are no records yet. Append one:",
  `topics append ${name} '{"sku": "A1"}'`,
  curl("POST", topicPath(name), { records: [{ data: { sku: "A1" } }] }));

const id = ({ topic, epoch, durable }) => `${epoch} ${durable} ${topic}`;

async function detail(list) {
  if (configs.size > CONFIGS_MAX) configs.clear();
  await each(list.filter((topic) => !configs.has(id(topic))),
    async (topic) => configs.set(id(topic), (await topicState(topic.topic)).config));
}

function row(topic) {
  const { type, durability = topic.durable ? "fsync" : "" } = configs.get(id(topic)) ?? {};
  return html`<tr>${nameCell(topic.topic, at("topics", topic.topic))}
    <td class=${type === "queue" ? "accent" : nothing}>${type}</td>
    <td class="wide">${durability}</td><td class="number">${count(topic.count)}</td>
    <td class="number wide">${bytes(topic.bytes)}</td>
    <td class="number">${ago(topic.last_write_ts)}</td></tr>`;
}

const HEADS = ["Name", "Type", ["Class", "wide"], ["Records", "number"], ["Bytes", "number wide"],
  ["Last write", "number"]];

export const topicList = () => listPage({
  title: "Topics",
  path: (asked) => ask("GET", `/v0/topics?${query(asked)}`),
  made: ({ topics }) => topics,
  detail,
  view: (rows) => table(HEADS, rows.map(row)),
  none: FIRST_RECORD,
  button: () => action("New topic", "admin", newTopic, { kind: "primary" }),
});

function newTopic() {
  let name = "";
  const form = newForm(), { patch } = form;
  openForm("New topic", {
    label: "Create",
    isReady: () => !isInvalid(form),
    fields: (drawIt) => html`<label>Name <input required autofocus spellcheck="false"
      autocomplete="off" maxlength="255"
      @input=${(event) => { name = event.target.value; drawIt(); }}></label>
      ${configForm(undefined, form, drawIt)}
      ${name ? code(curl("PUT", topicPath(name), patch)) : nothing}`,
    async submit() { // a PUT would change an existing topic, and might remove its records
      const { created } = await ask("PUT", topicPath(name, "?dry_run=true"), patch);
      if (!created) throw mistake("a topic of this name exists already");
      await ask("PUT", topicPath(name), patch);
      location.hash = at("topics", name);
    },
  });
}
