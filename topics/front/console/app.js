// The console: selects the page, polls the server, asks for the key, and handles the keyboard.
import { html, nothing, render } from "./lit-html.js";
import { session, signIn } from "./api.js";
import { closeDialog, drawWith, mistake, openDialog, problem, toasted, update } from "./ui.js";
import { overview } from "./overview.js";
import { topicList } from "./topic_list.js";
import { topicPage } from "./topic.js";
import { queueList, queuePage } from "./queues.js";
import { routerList } from "./routers.js";
import { cursorList } from "./cursors.js";

// A page is { title, view(), refresh(), close?(), pause?() }, created with the name, the tab and
// the parameters of its address, #/section/name/tab?parameters. It is refreshed while visible.
const POLL_MS = 2000, LOST_MS = 700;
const PAGES = {
  "": ["Overview", overview],
  topics: ["Topics", (name, ...more) => (name ? topicPage(name, ...more) : topicList())],
  queues: ["Queues", (name, ...more) => (name ? queuePage(name, ...more) : queueList())],
  routers: ["Routers", routerList],
  cursors: ["Cursors", cursorList],
};

let page, section = "", keyError, polls = 0, timer;

function decoded(segment) {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function open() {
  const [path, parameters] = location.hash.slice(1).split("?");
  const [first = "", name, tab] = path.split("/").slice(1).map(decoded);
  page?.close?.();
  closeDialog();
  section = first in PAGES ? first : "";
  page = PAGES[section][1](name, tab, new URLSearchParams(parameters));
  document.title = `${page.title} – topics`;
  scrollTo(0, 0);
  refreshPage();
  update();
}

async function refreshPage() {
  clearTimeout(timer);
  const poll = ++polls, current = page;
  if (document.hidden || session.isKeyWanted) return;
  const error = await current.refresh().then(() => undefined, (thrown) => thrown);
  current.error = session.isLost ? undefined : error; // the banner reports a lost connection
  update();
  if (poll === polls) timer = setTimeout(refreshPage, session.isLost ? LOST_MS : POLL_MS);
}

function signOut() {
  sessionStorage.clear(); // with all drafts
  signIn("");
  open();
}

session.changed = () => {
  if (session.isKeyWanted) {
    page.close?.(); // its stream is refused as well
    closeDialog();
  }
  update();
  if (session.isKeyWanted)
    requestAnimationFrame(() => document.querySelector(".key input")?.focus());
};

// The frame around the page

function enter(event) {
  event.preventDefault();
  const key = new FormData(event.target).get("key").trim();
  const isValid = /^[\x21-\x7e]+$/.test(key);
  keyError = isValid ? undefined : mistake("a key consists of visible ASCII characters");
  if (!isValid) return update();
  signIn(key);
  open();
}

const keyForm = () => html`<form class="key" @submit=${enter}>
  <h1>API key</h1>
  <p>This server requires a key. The key is stored in this tab until the tab is closed.</p>
  ${problem(keyError ?? (session.key ? mistake("the server does not accept this key") : undefined))}
  <label>Key <input name="key" type="password" autocomplete="off" autofocus required></label>
  <div class="buttons"><button class="primary">Sign in</button></div>
  <p class="hint">Keys are listed in <code>TOPICS_API_KEYS</code> or in the key file of the
    server. The scope <code>read</code> is sufficient to view all pages.</p></form>`;

function connectionState() {
  if (session.isLost) return html`<span class="state lost">reconnecting</span>`;
  const lacking = [...session.denied].join(", ");
  return html`${lacking ? html`<span class="badge" title="the key lacks ${lacking}">${
    session.denied.has("write") ? "read only" : `no ${lacking}`}</span>` : nothing}
    <span class="state">connected</span>`;
}

const frame = () => html`<header>
  <a class="mark" href="#/">topics</a>
  <nav aria-label="Pages">${Object.entries(PAGES).map(([path, [title]]) => html`
    <a href="#/${path}" aria-current=${path === section ? "page" : nothing}>${title}</a>`)}</nav>
  <div class="tools">${connectionState()}
    ${session.key && !session.isKeyWanted ? html`<button type="button" class="quiet"
      @click=${signOut}>sign out</button>` : nothing}
    <button type="button" class="help" aria-label="Keyboard shortcuts"
      title="Keyboard shortcuts" @click=${help}>?</button>
    </div>
  </header>
  <div class="banner" role="status" ?hidden=${!session.isLost}>The server does not respond.
    Reconnecting…</div>
  <main>${session.isKeyWanted ? keyForm() : page.view()}</main>${toasted()}`;

const root = document.querySelector("#app");
root.textContent = "";
drawWith(() => render(frame(), root));

// The keyboard

const HELP = [["/", "focus the filter"], ["j", "next row"], ["k", "previous row"],
  ["Enter", "open the row"], ["Ctrl Enter", "append the record of a form"],
  ["p", "pause or resume"], ["?", "show these shortcuts"]];
const help = () => openDialog("Keyboard shortcuts", () => html`<dl class="keys">${HELP.map(
  ([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl><div class="buttons">
  <button type="button" autofocus @click=${closeDialog}>Close</button></div>`);

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const here = rows.indexOf(document.activeElement);
  const next = rows[here < 0 ? 0 : Math.min(Math.max(here + step, 0), rows.length - 1)];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const ACTIONS = {
  "/": () => document.querySelector("[data-filter]")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  p: () => page.pause?.(),
  "?": help,
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
    return;
  if (event.target.closest("input, textarea, select")) {
    if (event.key === "Escape") event.target.blur();
  } else if (event.key in ACTIONS) {
    event.preventDefault();
    ACTIONS[event.key]();
  }
});
addEventListener("hashchange", open);
document.addEventListener("visibilitychange", refreshPage);
open();
