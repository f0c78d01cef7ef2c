// The config of a topic as a form. It collects the changed fields in a patch, as PUT accepts it.
import { html, nothing } from "./lit-html.js";
import { COUNT, SIZE, TIME, exact, read } from "./units.js";

const DEFAULTS = { type: "log", ttl_ms: 0, cap_records: 0, cap_bytes: 0, discard: "old",
  durability: "disk", priority: null, auto_priority: true, auto_create: true,
  idempotency_window_ms: 120_000, dedupe_node: true, lease_ms: 30_000, claim_jitter_ms: 0,
  max_deliveries: 0, dead_letter: null, leases_durable: false };

// A field, its meaning, and either its values or the kind of its number and the meaning of 0.
const FIELDS = [
  ["durability", "when an append is acknowledged", ["ephemeral", "memory", "disk", "fsync"]],
  ["ttl_ms", "maximum age of a record", TIME, "no limit"],
  ["cap_records", "maximum number of records", COUNT, "no limit"],
  ["cap_bytes", "maximum size of all records", SIZE, "no limit"],
  ["discard", "at a cap: remove the oldest records, or reject appends", ["old", "reject"]],
  ["idempotency_window_ms", "how long idempotency keys are remembered", TIME, "not at all"],
  ["priority", "−1000 to 1000; empty: derived from use"],
];
const OF_QUEUES = [
  ["lease_ms", "default lease of a claimed job", TIME],
  ["max_deliveries", "deliveries before a job becomes a dead letter", COUNT, "no limit"],
  ["dead_letter", "topic that receives the dead letters"],
  ["claim_jitter_ms", "how long claims wait to share the jobs evenly", TIME, "not at all"],
];
const SWITCHES = [["auto_priority", "derive the priority from use"],
  ["auto_create", "an append may create the topic again"],
  ["dedupe_node", "a reader that names its node does not receive the records of this node"]];
const SWITCH_OF_QUEUES = ["leases_durable", "leases survive a crash of the server"];
const KINDS = new Map([...FIELDS, ...OF_QUEUES].map(([field, , kind]) => [field, kind]));

/** The state of a form: the changed fields, the texts being edited, and why they are invalid. */
export const newForm = () => ({ patch: {}, texts: {}, errors: {} });
export const isInvalid = ({ errors }) => Object.keys(errors).length > 0;

/** A value of a config as the command `topics` accepts it. */
export const written = (field, value) => (value !== null && KINDS.get(field)?.steps
  ? exact(KINDS.get(field), value) : String(value));

/** `config` is undefined for a new topic. `changed` is called after each edit. */
export function configForm(config, { patch, texts, errors }, changed) {
  const base = config ?? DEFAULTS, now = { ...base, ...patch };
  const set = (field, value) => {
    if (value === base[field]) delete patch[field];
    else patch[field] = value;
    changed();
  };
  const classOf = (name, field) => (field in patch || field in errors ? `${name} changed` : name);

  function choose(field, value) {
    if (field === "type") // the fields of queues are shown or hidden
      for (const [each] of OF_QUEUES) delete errors[each];
    set(field, value);
  }
  const select = (field, values, isFixed) => html`<select ?disabled=${isFixed}
    @change=${(event) => choose(field, event.target.value)}>${values.map((value) => html`
    <option value=${value} ?selected=${value === now[field]}>${value}</option>`)}</select>`;

  function edit(field, kind, text) {
    texts[field] = text;
    delete errors[field];
    try {
      set(field, text.trim() === "" ? 0 : read(kind, text));
    } catch (error) {
      errors[field] = error.message;
      set(field, base[field]);
    }
  }
  function leave(field) { // the text stays if it is invalid
    if (!(field in errors)) delete texts[field];
    changed();
  }
  function amount(field, kind, zero = "0") {
    const value = now[field], text = exact(kind, value), shown = value ? kind.show(value) : zero;
    return html`<input inputmode="text" autocomplete="off" spellcheck="false"
      aria-invalid=${field in errors} .value=${texts[field] ?? text}
      @input=${(event) => edit(field, kind, event.target.value)} @change=${() => leave(field)}>
      ${field in errors || shown.replace(" ", "") === text ? nothing
        : html`<small>${shown}</small>`}`;
  }

  const plain = (field, isNumber) => html`<input type=${isNumber ? "number" : "text"} min="-1000"
    max="1000" autocomplete="off" spellcheck="false" .value=${String(now[field] ?? "")}
    @input=${({ target: { value } }) =>
      set(field, value === "" ? null : isNumber ? Number(value) : value)}>`;

  const row = ([field, what, kind, zero], isFixed = false) => html`<label
    class=${classOf("field", field)}><span><b>${field}</b> ${what}</span><span class="value">
    ${Array.isArray(kind) ? select(field, kind, isFixed) : kind ? amount(field, kind, zero)
      : plain(field, field === "priority")}</span>${field in errors
      ? html`<span class="invalid" role="alert">${errors[field]}</span>` : nothing}</label>`;
  const toggle = ([field, what]) => html`<label class=${classOf("switch", field)}>
    <input type="checkbox" .checked=${now[field]}
      @change=${(event) => set(field, event.target.checked)}>
    <span><b>${field}</b> ${what}</span></label>`;

  const isQueue = now.type === "queue";
  const type = ["type", config ? "cannot be changed"
    : "records of a log are read; jobs of a queue are claimed by workers", ["log", "queue"]];
  return html`<div class="config">${row(type, config !== undefined)}
    ${FIELDS.map((field) => row(field))}${isQueue ? OF_QUEUES.map((field) => row(field)) : nothing}
    <div class="switches">${SWITCHES.map(toggle)}${
      isQueue ? toggle(SWITCH_OF_QUEUES) : nothing}</div></div>`;
}
