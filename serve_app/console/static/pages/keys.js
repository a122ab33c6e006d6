// The page with the keys of all owners, for administrators.

import { all, call, path } from "../lib/api.js";
import { button, fill, h } from "../lib/dom.js";
import * as session from "../lib/session.js";
import * as words from "../pure/words.js";
import { keyForm, limitsText } from "../parts/key_form.js";
import { confirmed, copy, dialog, problem, toast } from "../parts/notices.js";

export async function keysPage({ signal }) {
  const list = h("div");
  const trouble = h("div");

  async function load() {
    const keys = await all("v1/keys", "keys", { signal });
    fill(list, table(keys, { edit, rotate, revoke }));
  }

  /** Changes a key by `act`, and loads the keys again. */
  async function change(act) {
    fill(trouble);
    try {
      await act();
      await load();
    } catch (error) {
      if (!signal.aborted) fill(trouble, problem(error));
    }
  }

  function create() {
    dialog("New key", (close) =>
      keyForm(null, async (body) => {
        const made = await call("v1/keys", { method: "POST", json: body });
        close();
        showOnce(made);
        await change(() => {});
      }),
    );
  }

  function edit(key) {
    dialog(`Key of ${key.owner}`, (close) =>
      keyForm(key, async (body) => {
        await call(path("v1", "keys", key.id), { method: "PATCH", json: body });
        close();
        toast("The key is changed");
        await change(() => {});
      }),
    );
  }

  async function rotate(key) {
    if (!(await confirmed(`Rotate ${key.name}?`, "A new key alike is made. The old one goes on for seven days, unless the service is set up otherwise.", "Rotate"))) return;
    await change(async () => showOnce(await call(`${path("v1", "keys", key.id)}/rotate`, { method: "POST" })));
  }

  async function revoke(key) {
    const own = key.id === session.caller().key_id ? " It is the one that you are signed in with." : "";
    if (!(await confirmed(`Revoke ${key.name}?`, `It stops working within ten seconds, for good.${own}`, "Revoke"))) return;
    await change(() => call(path("v1", "keys", key.id), { method: "DELETE" }));
  }

  await load();
  const head = h("div", { class: "card-head" }, h("h1", {}, "Keys"), button("New key", { kind: "primary", sign: "plus", onclick: create }));
  return h("div", { class: "page" }, head, trouble, h("section", { class: "card", "aria-label": "Keys" }, list));
}

function table(keys, acts) {
  const heads = ["Name", "Owner", "May", "Limits", "State", "Made", ""];
  return h(
    "div",
    { class: "table", tabindex: 0, role: "region", "aria-label": "Keys of every owner" },
    h("table", {}, h("thead", {}, h("tr", {}, heads.map((each) => (each ? h("th", { scope: "col" }, each) : h("td", {}))))), h("tbody", {}, keys.toReversed().map((key) => row(key, acts)))),
  );
}

function row(key, { edit, rotate, revoke }) {
  const isLive = key.state === "live";
  const tool = (text, act, kind = "quiet") => button(text, { kind, onclick: () => act(key), "aria-label": `${text} ${key.name}` });
  return h(
    "tr",
    {},
    h("td", {}, h("b", {}, key.name), h("br"), h("code", { class: "hint" }, key.id)),
    h("td", {}, key.owner),
    h("td", {}, h("div", { class: "tags" }, key.scopes.map((each) => h("span", { class: "tag" }, each)))),
    h("td", { class: "hint" }, limitsText(key.limits)),
    h("td", {}, h("span", { class: `badge ${key.state}` }, key.state), key.expires_at && isLive && h("p", { class: "hint" }, `until ${words.date(key.expires_at)}`)),
    h("td", { class: "hint" }, h("time", { datetime: key.created_at }, words.ago(key.created_at))),
    h("td", { class: "tools" }, isLive && [tool("Change", edit), !key.replaced_by && tool("Rotate", rotate), tool("Revoke", revoke, "quiet danger")]),
  );
}

/** Shows a new key and its secret, which cannot be shown again. */
function showOnce({ key, webhook_secret: secret, owner }) {
  const part = (name, value) => h("div", { class: "stack" }, h("h3", {}, name), h("p", { class: "secret" }, value), h("div", { class: "actions" }, button(`Copy ${name.toLowerCase()}`, { sign: "copy", onclick: () => copy(value, name) })));
  dialog(`New key of ${owner}`, () => [h("p", {}, "Both are shown this once. Keep them where only their owner reads."), part("Key", key), part("Webhook secret", secret)]);
}
