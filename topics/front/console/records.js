// Rows of records and losses: a bounded list, and how its rows look.
import { html, nothing } from "./lit-html.js";
import { curl, topicPath } from "./api.js";
import { bytes, copyButton, count, moment, update } from "./ui.js";

const KEPT = 500, KEPT_CHARS = 32_000_000; // rows, and characters of their JSON
const PREVIEW = 240, SHOWN = 200_000;

export function rowOf(topic, record) {
  const text = JSON.stringify(record.data); // not kept: records may be long
  return { topic, record, seq: record.$seq, size: text.length, preview: text.slice(0, PREVIEW) };
}
export const lossOf = ({ gap_from, gap_to, reason }) => ({ size: 0,
  note: `lost #${gap_from}${gap_to > gap_from ? `–#${gap_to}` : ""} (${reason})` });
export const noteOf = (note) => ({ size: 0, note });

/** Keep the first rows of a list. Returns how many were dropped. */
export function bound(rows) {
  let chars = 0;
  const end = rows.findIndex(({ size }, at) => at >= KEPT || (chars += size) > KEPT_CHARS);
  return end < 0 ? 0 : rows.splice(Math.max(end, 1)).length;
}

/** Whether a row has the tag, or one that begins with what stands before a *, and the text. */
export function passes({ record, size, preview }, tag, text) {
  if (!record) return true;
  const own = record.$tag ?? "", isGlob = tag.endsWith("*");
  if (tag && !(isGlob ? own.startsWith(tag.slice(0, -1)) : own === tag)) return false;
  if (!text) return true;
  const whole = size > PREVIEW ? JSON.stringify(record.data) : preview;
  return whole.toLowerCase().includes(text.toLowerCase());
}

function opened({ topic, record }) {
  const { $seq, $ts, $tag, $node, data, meta } = record, shown = JSON.stringify(data, null, 2);
  const fields = { seq: $seq, time: new Date($ts).toISOString(), tag: $tag, node: $node,
    meta: meta && JSON.stringify(meta) };
  return html`<div class="record"><dl>${Object.entries(fields).map(([field, value]) =>
    (value === undefined ? nothing : html`<dt>${field}</dt><dd>${value}</dd>`))}</dl>
    <pre tabindex="0">${shown.slice(0, SHOWN)}</pre>
    ${shown.length > SHOWN ? html`<p class="hint">The first ${bytes(SHOWN)} of
      ${bytes(shown.length)}; copy gives all.</p>` : nothing}
    <div class="buttons">${copyButton("copy JSON", () => JSON.stringify(record, null, 2))}
      ${copyButton("copy curl", () => curl("POST", topicPath(topic, "/diff"),
        { from_seq: $seq - 1, limit: 1, include_tags: true }))}</div></div>`;
}

/** `aside` is what stands before the data of a row; `touched` is called when a row has the focus,
    or is opened. */
export function rowList(rows, { touched = () => {}, aside = () => nothing } = {}) {
  const toggle = (row) => {
    row.isOpen = !row.isOpen;
    touched();
    update();
  };
  const kind = rows.some(({ record }) => record?.$tag) ? "records tagged" : "records";
  return html`<ol class=${kind} @focusin=${touched}>${rows.map((row) => (row.note
    ? html`<li class="lost"><span>${row.note}</span></li>`
    : html`<li><button type="button" data-row class="row" aria-expanded=${row.isOpen ?? false}
      @click=${() => toggle(row)}><span class="seq">#${row.seq}</span>
      <time>${moment(row.record.$ts)}</time><span class="tag">${row.record.$tag ?? nothing}</span>
      ${aside(row)}<span class="data">${row.preview}</span></button>
      ${row.isOpen ? opened(row) : nothing}</li>`))}</ol>`;
}

export const kept = (rows, dropped) => (dropped ? html`<p class="hint">${count(rows.length)} rows
  are kept here; ${count(dropped)} older ones went by.</p>` : nothing);
