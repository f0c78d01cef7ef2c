// Rows of records and losses: a bounded list, and how its rows are drawn. The `data` and `meta` of
// a record are texts (json.js).
import { html, nothing } from "./lit-html.js";
import { curl, topicPath } from "./api.js";
import { indented, recordText } from "./json.js";
import { bytes, copyButton, count, moment, update, visible } from "./ui.js";

const KEPT = 500, KEPT_CHARS = 32_000_000; // rows, and characters of their data
const PREVIEW = 240, SHOWN = 200_000; // characters

export const rowOf = (topic, record) => ({ topic, record, seq: record.$seq,
  size: record.data.length, preview: record.data.slice(0, PREVIEW) });
export const lossOf = ({ gap_from, gap_to, reason }) => ({ size: 0,
  note: `lost #${gap_from}${gap_to > gap_from ? `–#${gap_to}` : ""} (${reason})` });
export const noteOf = (note) => ({ size: 0, note });

/** Keep the first rows of a list. Returns how many rows were dropped. */
export function bound(rows) {
  let chars = 0;
  const end = rows.findIndex(({ size }, at) => at >= KEPT || (chars += size) > KEPT_CHARS);
  return end < 0 ? 0 : rows.splice(Math.max(end, 1)).length;
}

const unescaped = (text) => text.replace(/\\u([0-9a-f]{4})/gi,
  (_, code) => String.fromCharCode(parseInt(code, 16)));

/** Return whether a row has the tag (a trailing * matches any suffix) and contains the text. */
export function passes({ record }, tag, text) {
  if (!record) return true;
  const own = record.$tag ?? "", isGlob = tag.endsWith("*");
  if (tag && !(isGlob ? own.startsWith(tag.slice(0, -1)) : own === tag)) return false;
  return !text || unescaped(record.data).toLowerCase().includes(text.toLowerCase());
}

function opened({ topic, record, size }) {
  const { $seq, $ts, $tag, $node, data, meta } = record, shown = indented(data, SHOWN);
  const fields = { seq: $seq, time: new Date($ts).toISOString(), tag: visible($tag),
    node: visible($node), meta: visible(meta) };
  return html`<div class="record"><dl>${Object.entries(fields).map(([field, value]) =>
    (value === undefined ? nothing : html`<dt>${field}</dt><dd>${value}</dd>`))}</dl>
    <pre tabindex="0">${visible(shown)}</pre>
    ${shown.length < SHOWN ? nothing : html`<p class="hint">Only the first ${count(SHOWN)}
      characters are shown. “copy JSON” copies the complete record (${bytes(size)}).</p>`}
    <div class="buttons">${copyButton("copy JSON", () => recordText(record))}
      ${copyButton("copy curl", () => curl("POST", topicPath(topic, "/diff"),
        { from_seq: $seq - 1, limit: 1, include_tags: true }))}</div></div>`;
}

/** `aside` returns the text before the data of a row. `touched` is called when a row receives the
    focus or is opened. */
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
      <time>${moment(row.record.$ts)}</time><span class="tag">${
        visible(row.record.$tag) ?? nothing}</span>
      ${aside(row)}<span class="data">${visible(row.preview)}</span></button>
      ${row.isOpen ? opened(row) : nothing}</li>`))}</ol>`;
}

export const kept = (rows, dropped) => (dropped ? html`<p class="hint">This page keeps ${
  count(rows.length)} rows; ${count(dropped)} older ones were removed from it.</p>` : nothing);
