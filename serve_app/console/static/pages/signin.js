// The page for signing in with a key.

import { call } from "../lib/api.js";
import { button, fill, h } from "../lib/dom.js";
import * as session from "../lib/session.js";
import { field } from "../parts/fields.js";

export function signInPage({ signal }) {
  const key = field("API key", h("input", { type: "password", autocomplete: "off", spellcheck: "false", placeholder: "dk_…", required: true }), {
    hint: "It stays in this tab and is gone when you close it.",
  });
  const submit = button("Sign in", { kind: "primary", type: "submit" });
  const wrong = h("div", { role: "alert", class: "sign-in-problem" }, session.whyEnded());

  async function signIn(event) {
    event.preventDefault();
    const text = key.control.value.trim();
    if (!text) return key.complain("Enter a key.");
    submit.disabled = true;
    key.complain(null);
    fill(wrong);
    try {
      session.begin(text, await call("v1/usage", { key: text, signal }));
    } catch (error) {
      if (signal.aborted) return;
      key.control.focus();
      if (error.status === 401) key.complain("This key is not known, or it has expired or was revoked.");
      else if (error.status === 403) key.complain("This key may not read. The console needs one with the scope “read”.");
      else fill(wrong, error.message);
    } finally {
      submit.disabled = false;
    }
  }

  const form = h("form", { onsubmit: signIn, novalidate: true }, wrong, key.root, submit);
  return h(
    "div",
    { class: "sign-in" },
    h("img", { src: "console/icon.svg", alt: "", width: 56, height: 56 }),
    h("h1", {}, "Darkroom"),
    h("p", { class: "lead" }, "Sign in with an API key."),
    form,
    h("p", { class: "hint" }, "The first key is on the screen of ", h("code", {}, "darkroom up"), " and in ", h("code", {}, "data/admin.key"), ". More are made by ", h("code", {}, "darkroom keys create"), "."),
  );
}
