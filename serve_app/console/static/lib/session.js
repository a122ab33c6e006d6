// The key of this tab. The key is stored only in this tab, until the tab is closed.

const KEY = "darkroom.key";
const changes = new EventTarget();

let who = null;
let reason = "";

export function key() {
  return sessionStorage.getItem(KEY);
}

/** Returns the answer of `GET /v1/usage` with the owner and the scopes of the key; null before sign-in. */
export function caller() {
  return who;
}

export function may(scope) {
  return Boolean(who?.scopes.includes(scope) || who?.scopes.includes("admin"));
}

export function begin(text, usage) {
  sessionStorage.setItem(KEY, text);
  who = usage;
  reason = "";
  changes.dispatchEvent(new Event("change"));
}

/** Signs out. The sign-in page shows `why`. */
export function end(why = "") {
  sessionStorage.clear();
  who = null;
  reason = why;
  changes.dispatchEvent(new Event("change"));
}

export function whyEnded() {
  return reason;
}

export function onChange(action) {
  changes.addEventListener("change", action);
}
