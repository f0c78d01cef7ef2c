// The config of a topic as a form: what is changed stands in a patch, as PUT takes it.
import { html, nothing } from "./lit-html.js";
import { bytes, count, duration } from "./ui.js";

const DEFAULTS = { type: "log", ttl_ms: 0, cap_records: 0, cap_bytes: 0, discard: "old",
  durability: "disk", priority: null, auto_priority: true, auto_create: true,
  idempotency_window_ms: 120_000, dedupe_node: true, lease_ms: 30_000, claim_jitter_ms: 0,
  max_deliveries: 0, dead_letter: null, leases_durable: false };

// A field, what it means, and its values, or how a number is written and what 0 means.
const FIELDS = [
  ["durability", "when an append is acknowledged", ["ephemeral", "memory", "disk", "fsync"]],
  ["ttl_ms", "records live so long", duration, "for ever"],
  ["cap_records", "at most so many records", count, "no cap"],
  ["cap_bytes", "at most so many bytes", bytes, "no cap"],
  ["discard", "at a cap: drop old records, or reject new ones", ["old", "reject"]],
  ["idempotency_window_ms", "keys are known so long", duration, "not at all"],
  ["priority", "−1000 to 1000; empty: by use"],
];
const OF_QUEUES = [
  ["lease_ms", "a job stays with its worker so long", duration],
  ["max_deliveries", "a job is handed out so often", count, "for ever"],
  ["dead_letter", "the topic of jobs that fail so often"],
  ["claim_jitter_ms", "claims are dealt out together within", duration, "at once"],
];
const SWITCHES = [["auto_priority", "the priority follows use"],
  ["auto_create", "an append makes the topic anew"], ["dedupe_node", "keys count for each node"]];
const SWITCH_OF_QUEUES = ["leases_durable", "leases outlive a kill of the server"];

/** `config`: undefined of a new topic. `changed` is called when the patch has. */
export function configForm(config, patch, changed) {
  const base = config ?? DEFAULTS, now = { ...base, ...patch };
  const set = (field, value) => {
    if (value === base[field]) delete patch[field];
    else patch[field] = value;
    changed();
  };
  const kindOf = (kind, field) => (field in patch ? `${kind} changed` : kind);

  const select = (field, values, isFixed) => html`<select ?disabled=${isFixed}
    @change=${(event) => set(field, event.target.value)}>${values.map((value) => html`
    <option value=${value} ?selected=${value === now[field]}>${value}</option>`)}</select>`;
  function input(field, show, zero = "0") {
    const isText = field === "dead_letter", none = isText || field === "priority" ? null : 0;
    const valueOf = (text) => (text === "" ? none : isText ? text : Number(text));
    return html`<input type=${isText ? "text" : "number"} step="1" autocomplete="off"
      min=${field === "priority" ? -1000 : 0} spellcheck="false" .value=${String(now[field] ?? "")}
      @input=${(event) => set(field, valueOf(event.target.value))}>
      ${show ? html`<small>${now[field] ? show(now[field]) : zero}</small>` : nothing}`;
  }
  const row = ([field, what, values, zero], isFixed = false) => html`<label
    class=${kindOf("field", field)}><span><b>${field}</b> ${what}</span><span class="value">
    ${Array.isArray(values) ? select(field, values, isFixed) : input(field, values, zero)}</span>
    </label>`;
  const toggle = ([field, what]) => html`<label class=${kindOf("switch", field)}>
    <input type="checkbox" .checked=${now[field]}
      @change=${(event) => set(field, event.target.checked)}>
    <span><b>${field}</b> ${what}</span></label>`;

  const isQueue = now.type === "queue";
  const type = ["type", config ? "stays as it is" : "a log is read, a queue is worked on",
    ["log", "queue"]];
  return html`<div class="config">${row(type, config !== undefined)}
    ${FIELDS.map((field) => row(field))}${isQueue ? OF_QUEUES.map((field) => row(field)) : nothing}
    <div class="switches">${SWITCHES.map(toggle)}${
      isQueue ? toggle(SWITCH_OF_QUEUES) : nothing}</div></div>`;
}
