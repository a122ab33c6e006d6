// Errors, short messages, and questions before actions that cannot be undone.

import { button, fill, h, signButton } from "../lib/dom.js";

const SHOWN_MS = 5000;
const toasts = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
document.body.append(toasts);

/** Returns an element that describes an error and what the user can do. */
export function problem(error) {
  const details = error.details && !error.fields?.length ? h("p", { class: "details" }, error.details) : null;
  const fields = (error.fields ?? []).map((each) => h("li", {}, h("b", {}, each.field), `: ${each.message}`));
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("p", {}, plain(error)),
    fields.length ? h("ul", {}, fields) : details,
  );
}

function plain(error) {
  if (error.status === 403) return `This key may not do that. ${error.message}`;
  if (error.status === 404) return "There is nothing here. It was erased, or it belongs to somebody else.";
  if (error.status === 429) return `${error.message} Try again in a moment.`;
  return error.message || "Something went wrong on this page.";
}

export function toast(text) {
  const shown = h("div", { class: "toast" }, text);
  toasts.append(shown);
  setTimeout(() => shown.remove(), SHOWN_MS);
}

/** Opens a dialog with a title. `content(close)` returns the content of the dialog. */
export function dialog(title, content, { kind = "" } = {}) {
  const element = h("dialog", { class: `dialog ${kind}`, "aria-label": title });
  const close = () => element.close();
  element.addEventListener("close", () => element.remove());
  element.addEventListener("click", (event) => event.target === element && close());
  const head = h("div", { class: "dialog-head" }, h("h2", {}, title), signButton("Close", "close", { onclick: close }));
  fill(element, head, content(close));
  document.body.append(element);
  element.showModal();
  return element;
}

/** Asks the user. Returns whether the user confirms `question`. */
export function confirmed(title, question, yes) {
  return new Promise((resolve) => {
    let answer = false;
    const element = dialog(title, (close) => [
      h("p", {}, question),
      h(
        "div",
        { class: "actions" },
        button("Cancel", { onclick: close }),
        button(yes, { kind: "danger", onclick: () => ((answer = true), close()) }),
      ),
    ]);
    element.addEventListener("close", () => resolve(answer));
  });
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`);
  } catch {
    dialog(`Copy the ${what.toLowerCase()}`, () => h("textarea", { class: "code", rows: 12, readOnly: true, value: text, "aria-label": what }));
  }
}

export function empty(title, text, ...actions) {
  return h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), actions);
}

/** Returns an element that is shown while content is being loaded. */
export function waiting(text) {
  return h("div", { class: "waiting", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);
}
