// The key of this tab. It is kept as long as the tab is, and nowhere else.

const KEY = "darkroom.key";
const changes = new EventTarget();

let who = null;
let reason = "";

export function key() {
  return sessionStorage.getItem(KEY);
}

/** What `GET /v1/usage` said of the key: its owner and scopes; null before that. */
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

/** `why` is shown where the next key is asked for. */
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
