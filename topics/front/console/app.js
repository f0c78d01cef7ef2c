// The console: which page is shown, when it asks the server, the key, and the keyboard.
import { html, nothing, render } from "./lit-html.js";
import { session, signIn } from "./api.js";
import { closeDialog, drawWith, mistake, openDialog, problem, toasted, update } from "./ui.js";
import { overview } from "./overview.js";
import { topicList } from "./topic_list.js";
import { topicPage } from "./topic.js";
import { queueList, queuePage } from "./queues.js";
import { routerList } from "./routers.js";
import { cursorList } from "./cursors.js";

// A page is { title, view(), refresh?(), close?(), pause?() }, made with a name, a tab and the
// parameters of its address, #/section/name/tab?parameters. While it is seen, it is refreshed.
const POLL_MS = 2000, LOST_MS = 700;
const PAGES = {
  "": ["Overview", overview],
  topics: ["Topics", (name, ...more) => (name ? topicPage(name, ...more) : topicList())],
  queues: ["Queues", (name, ...more) => (name ? queuePage(name, ...more) : queueList())],
  routers: ["Routers", routerList],
  cursors: ["Cursors", cursorList],
};

let page, section = "", keyError, turn = 0, timer;

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
  poll();
  update();
}

async function poll() {
  clearTimeout(timer);
  const mine = ++turn, current = page;
  if (document.hidden || session.isKeyWanted) return;
  const error = await current.refresh().then(() => undefined, (thrown) => thrown);
  current.error = session.isLost ? undefined : error; // the banner says it
  update();
  if (mine === turn) timer = setTimeout(poll, session.isLost ? LOST_MS : POLL_MS);
}

function signOut() {
  sessionStorage.clear(); // with all drafts
  signIn("");
  open();
}

session.changed = () => {
  if (session.isKeyWanted) {
    page.close?.(); // its stream is refused, too
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
  keyError = isValid ? undefined : mistake("a key is made of visible ASCII characters");
  if (!isValid) return update();
  signIn(key);
  open();
}

const keyForm = () => html`<form class="key" @submit=${enter}>
  <h1>API key</h1>
  <p>This server wants a key. It is kept in this tab, until the tab is closed.</p>
  ${problem(keyError ?? (session.key ? mistake("the server does not know this key") : undefined))}
  <label>Key <input name="key" type="password" autocomplete="off" autofocus required></label>
  <div class="buttons"><button class="primary">Go on</button></div>
  <p class="hint">Keys are entries of <code>TOPICS_API_KEYS</code>, or of the file of keys. One with
    the scope <code>read</code> is enough to look around.</p></form>`;

function standing() {
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
  <div class="tools">${standing()}
    ${session.key && !session.isKeyWanted ? html`<button type="button" class="quiet"
      @click=${signOut}>forget key</button>` : nothing}
    <button type="button" class="help" aria-label="Keys" title="Keys" @click=${help}>?</button>
    </div>
  </header>
  <div class="banner" role="status" ?hidden=${!session.isLost}>The server does not answer.
    Reconnecting…</div>
  <main>${session.isKeyWanted ? keyForm() : page.view()}</main>${toasted()}`;

const root = document.querySelector("#app");
root.textContent = "";
drawWith(() => render(frame(), root));

// The keyboard

const HELP = [["/", "filter"], ["j", "next row"], ["k", "row before"], ["Enter", "open the row"],
  ["p", "pause, or go on"], ["?", "these keys"]];
const help = () => openDialog("Keys", () => html`<dl class="keys">${HELP.map(([key, what]) => html`
  <dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl><div class="buttons">
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
document.addEventListener("visibilitychange", poll);
open();
