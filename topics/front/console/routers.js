// Routers: their source, destination and lag, and a form for a new router.
import { html, nothing } from "./lit-html.js";
import { ask, curl, query, routerPath } from "./api.js";
import { action, at, code, confirmRemoval, count, duration, each, empty, listPage, mistake,
  nameCell, openForm, table, update, visible } from "./ui.js";
import { by, sample } from "./metrics.js";

const HEADS = ["Name", "From", ["Filter", "wide"], "To", ["Behind", "number"],
  ["Lag", "number wide"], ["Forwarded", "number wide"], ["Guarantee", "wide"], ["", "number"]];
const GUARANTEES = ["at_least_once", "exactly_once"];
const shown = (guarantee) => guarantee.replaceAll("_", " ");

export function routerList() {
  let now;
  const filters = new Map(); // by name, because the list does not contain them

  const remove = (router, refresh) => confirmRemoval("router", router,
    "The records that it has copied remain.", async () => {
      await ask("DELETE", routerPath(router));
      filters.delete(router);
      await refresh();
    });

  function view(rows, refresh) {
    const [behind, lag] = ["lag_records", "lag_ms"]
      .map((name) => by(now, `topics_router_${name}`, "router"));
    return html`<div class="wrap">${table(HEADS, rows.map(({ router, ...each }) => html`
      <tr data-row tabindex="0">${nameCell(router)}
        <td class="name"><a href=${at("topics", each.source)}>${each.source}</a></td>
        <td class="filter wide">${visible(filters.get(router)?.[2]) ?? nothing}</td>
        <td class="name"><a href=${at("topics", each.dest)}>${each.dest}</a></td>
        <td class="number">${count(behind.get(router))}</td>
        <td class="number wide">${duration(lag.get(router))}</td>
        <td class="number wide">${count(each.forwarded_total)}</td>
        <td class="wide">${shown(each.guarantee)}</td>
        <td class="number">${action("delete", "delete", () => remove(router, refresh),
          { kind: "quiet" })}</td></tr>`))}</div>`;
  }

  return listPage({
    title: "Routers",
    async path(asked) {
      now = (await sample()).metrics;
      return ask("GET", `/v0/routers?${query(asked)}`);
    },
    made: ({ routers }) => routers,
    detail: (rows) => each(rows.filter(({ router }) => !filters.has(router)),
      async ({ router }) => filters.set(router, (await ask("GET", routerPath(router))).filter)),
    view,
    none: () => empty("There are no routers yet. A router copies the records of a topic:",
      "topics router create orders-to-audit orders audit",
      curl("PUT", routerPath("orders-to-audit"), { source: "orders", dest: "audit" })),
    button: (refresh) =>
      action("New router", "admin", () => newRouter(refresh), { kind: "primary" }),
  });
}

function newRouter(refresh) {
  const asked = { name: "", source: "", dest: "", tag: "", guarantee: GUARANTEES[0] };
  const body = ({ source, dest, tag, guarantee } = asked) => ({ source, dest, guarantee,
    ...(tag && { filter: ["tag", tag.endsWith("*") ? "Glob" : "Eq", tag] }) });
  openForm("New router", {
    label: "Create",
    fields(drawIt) {
      const set = (member) => (event) => { asked[member] = event.target.value; drawIt(); };
      const field = (label, member, isRequired = true) => html`<label>${label}
        <input autocomplete="off" spellcheck="false" ?required=${isRequired}
          ?autofocus=${member === "name"} @input=${set(member)}></label>`;
      return html`${field("Name", "name")}
        <div class="fields">${field("From the topic", "source")}
          ${field("To the topic", "dest")}</div>
        <div class="fields">${field("Tag (optional), or eu:*", "tag", false)}
          <label>Guarantee <select @change=${set("guarantee")}>${GUARANTEES.map((each) => html`
            <option value=${each}>${shown(each)}</option>`)}</select></label></div>
        ${asked.name && asked.source && asked.dest
          ? code(curl("PUT", routerPath(asked.name), body())) : nothing}`;
    },
    async submit() { // a PUT would change an existing router
      const { routers } = await ask("GET",
        `/v0/routers?${query({ prefix: asked.name, page_size: 1 })}`);
      if (routers[0]?.router === asked.name)
        throw mistake("a router of this name exists already");
      await ask("PUT", routerPath(asked.name), body());
      await refresh();
      update();
    },
  });
}
