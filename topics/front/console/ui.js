// Building blocks of the pages: drawing, the format of values, and common parts.
import { html, nothing, render, svg } from "./lit-html.js";
import { lacks, why } from "./api.js";

let draw = () => {}, isDue = false;
export const drawWith = (drawing) => { draw = drawing; };

/** Draw in the next frame. Several calls draw once. */
export function update() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    draw();
  });
}

// Values

const plain = new Intl.NumberFormat("en");
export const count = (value) => (value == null ? "–" : plain.format(value));
export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1)
  : count(value && Math.round(value)));

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export function bytes(value) {
  if (value == null) return "–";
  let unit = 0;
  for (; value >= 1000 && unit < UNITS.length - 1; unit++) value /= 1024;
  return `${unit && value < 10 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

const STEPS = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]];
/** Write a time given in ms: 180 µs, 1.2 ms, 41 s, 3 d 4 h. */
export function duration(ms) {
  if (ms == null) return "–";
  if (ms <= 0) return "0 s";
  if (ms < 1) return `${Math.round(1000 * ms)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const at = STEPS.findIndex(([, size]) => ms >= size), [unit, size] = STEPS[at];
  const [below, small] = STEPS[at + 1] ?? [], more = small && Math.floor((ms % size) / small);
  return `${Math.floor(ms / size)} ${unit}${more ? ` ${more} ${below}` : ""}`;
}
export const ago = (ts) => (ts == null ? "–" : duration(Math.max(Date.now() - ts, 0)));

const two = (value) => String(value).padStart(2, "0");
/** Write a time of the local clock, with the date unless it is today. */
export function moment(ts) {
  const at = new Date(ts), time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two);
  const date = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join("-");
  return `${at.toDateString() === new Date().toDateString() ? "" : `${date} `}${time.join(":")}`;
}

/** Show the characters that reorder the text around them as escapes. */
export const visible = (text) => text?.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  (found) => `\\u${found.charCodeAt().toString(16).padStart(4, "0")}`);

/** Return the address of a page. */
export const at = (...path) => `#/${path.map(encodeURIComponent).join("/")}`;

/** Return all results of `ask`, with four requests at a time. A result is undefined if the item no
    longer exists. */
export async function each(items, ask) {
  const results = [], left = items.entries();
  async function worker() {
    for (const [index, item] of left)
      results[index] = await ask(item).catch((error) => { if (error.status !== 404) throw error; });
  }
  await Promise.all([1, 2, 3, 4].map(worker));
  return results;
}

// Parts

let toast, toastTimer;
export function say(text) {
  toast = text;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { toast = undefined; update(); }, 2500);
  update();
}
export const toasted = () => html`<div class="toast" role="status">${toast ?? nothing}</div>`;

async function copy(text) {
  const value = text();
  if (navigator.clipboard) await navigator.clipboard.writeText(value);
  else { // the page was loaded from another machine by plain http
    const area = Object.assign(document.createElement("textarea"), { value });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say("copied");
}
export const copyButton = (label, text) => html`
  <button type="button" class="quiet" 
    @click=${() => copy(text).catch((error) => say(error.message))}>${label}</button>`;
export const code = (text) => html`
  <div class="code"><code>${text}</code>${copyButton("copy", () => text)}</div>`;
export const empty = (title, ...lines) => html`
  <div class="empty"><p>${title}</p>${lines.map(code)}</div>`;
export const problem = (error) => (error === undefined ? nothing : html`
  <p class="problem" role="alert"><b>${error.message}</b> <span>${error.code}</span></p>`);

/** A button for an action that needs a scope. */
export const action = (label, scope, act, { kind = "", isOff = false } = {}) => html`
  <button type="button" class=${kind} ?disabled=${isOff || lacks(scope)} title=${why(scope)}
    @click=${act}>${label}</button>`;

export const stat = (label, value, more = nothing) => html`<div class="stat">
  <dt>${label}</dt><dd>${value}</dd>
  ${typeof more === "string" ? html`<small>${more}</small>` : more}</div>`;

export function sparkline(values, label) {
  const most = Math.max(...values, 1e-9);
  const place = (value, index) => `${((40 - values.length + index) * 120 / 39).toFixed(1)},${
    (26 - 24 * (value / most)).toFixed(1)}`;
  const line = values.length > 1 ? svg`<polyline points=${values.map(place).join(" ")} />`
    : nothing;
  return html`<svg class="spark" viewBox="0 0 120 28" preserveAspectRatio="none" role="img"
    aria-label=${label}>${line}</svg>`;
}

export const tabs = (label, rows) => html`<nav class="tabs" aria-label=${label}>${rows.map(
  ([text, href, isHere]) => html`
  <a href=${href} aria-current=${isHere ? "page" : nothing}>${text}</a>`)}</nav>`;

export const search = (label, value, changed, { isMain = true } = {}) => html`
  <label class="filter"><span class="unseen">${label}</span><input type="search"
    ?data-filter=${isMain} placeholder=${label} spellcheck="false" .value=${value}
    @input=${(event) => changed(event.target.value.trim())}></label>`;

/** A table. A head is a title, or a title and the class of its cells. */
export const table = (heads, rows) => html`<table><thead><tr>${heads.map((head) => {
  const [title, kind] = [head].flat();
  return html`<th class=${kind ?? nothing}>${title}</th>`;
})}</tr></thead><tbody>${rows}</tbody></table>`;

export const nameCell = (name, href) => html`<td class="name" title=${visible(name)}>${
  href ? html`<a data-row href=${href}>${name}</a>` : html`<span>${visible(name)}</span>`}</td>`;

// Actions

/** Run the action of a form or button. `state.error` and `state.isBusy` show its progress. */
export async function attempt(state, act) {
  Object.assign(state, { error: undefined, isBusy: true });
  update();
  await act().catch((error) => { state.error = error; });
  state.isBusy = false;
  update();
}

/** Return an error that the console itself has detected. */
export const mistake = (message, code = "") => Object.assign(new Error(message), { code });

const dialog = document.querySelector("#dialog");
export const closeDialog = () => dialog.close();
dialog.addEventListener("close", () => render(nothing, dialog));

/** Show a dialog. `content` is called with a function that draws the dialog again. */
export function openDialog(title, content) {
  const drawIt = () => render(html`<h2 id="dialog-title">${title}</h2>${content(drawIt)}`, dialog);
  drawIt();
  dialog.showModal();
}

/** Show a form. It closes when `submit` has succeeded, and shows the error otherwise. */
export function openForm(title, { label, kind = "primary", isReady = () => true, fields, submit }) {
  const state = {};
  openDialog(title, (drawIt) => html`<form @submit=${async (event) => {
    event.preventDefault();
    if (!isReady() || state.isBusy) return;
    await attempt(state, submit);
    if (state.error) drawIt();
    else closeDialog();
  }}>${fields(drawIt)}${problem(state.error)}
    <div class="buttons"><button type="button" @click=${closeDialog}>Cancel</button>
      <button class=${kind} ?disabled=${!isReady()}>${label}</button></div></form>`);
}

/** Ask for the name of the object as a confirmation, then remove it. */
export function confirmRemoval(kind, name, what, remove) {
  let typed = "";
  openForm(`Delete the ${kind}`, { label: "Delete", kind: "danger", submit: remove,
    isReady: () => typed === name && !lacks("delete"),
    fields: (drawIt) => html`<p>${what}</p>
      <label><span>Type <b class="mono">${name}</b> to confirm</span>
        <input name="name" autocomplete="off" spellcheck="false" autofocus
          @input=${(event) => { typed = event.target.value; drawIt(); }}></label>` });
}

/** A page with a list from the API, its filter and its pages. `made` converts a response to rows;
    `detail` requests fields that the list does not contain. */
export function listPage({ title, path, prefix = "", made, detail, view, none, button }) {
  const SIZE = 100;
  let filter = "", cursors = [], rows, next;

  async function refresh() {
    const asked = { prefix: prefix + filter, page_size: SIZE, cursor: cursors.at(-1) };
    const found = await path(asked), list = await made(found);
    if (asked.prefix !== prefix + filter || asked.cursor !== cursors.at(-1)) return; // outdated
    [rows, next] = [list, found.next_cursor];
    update();
    await detail?.(rows);
  }
  function go(...following) {
    [cursors, rows, next] = [following, undefined, undefined];
    refresh().then(update, () => {}); // the next poll reports the error
    update();
  }

  const pager = () => html`<div class="pager">
    <button type="button" ?disabled=${!cursors.length} @click=${() => go(...cursors.slice(0, -1))}>
      Back</button><span class="hint">${SIZE} per page</span>
    <button type="button" ?disabled=${!next} @click=${() => go(...cursors, next)}>More</button>
    </div>`;

  return { title, refresh, view() {
    const isEmpty = rows?.length === 0 && !cursors.length;
    return html`<div class="title"><h1>${title}</h1>
      ${search("name begins with", filter, (value) => { filter = value; go(); })}
      ${button?.(refresh)}</div>${problem(this.error)}
      ${isEmpty && filter ? empty(`No name begins with “${filter}”.`) : isEmpty ? none()
        : rows === undefined ? nothing
        : html`${view(rows, refresh)}${next || cursors.length ? pager() : nothing}`}`;
  } };
}
