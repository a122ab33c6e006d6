// Records whether the service answers. While it does not answer, it is checked every two seconds.

const PERIOD_MS = 2000;
const changes = new EventTarget();
let isOnline = true;
let timer = null;

export function noteAnswer() {
  if (isOnline) return;
  isOnline = true;
  clearTimeout(timer);
  changes.dispatchEvent(new Event("change"));
}

export function noteSilence() {
  if (!isOnline) return;
  isOnline = false;
  changes.dispatchEvent(new Event("change"));
  timer = setTimeout(ask, PERIOD_MS);
}

async function ask() {
  try {
    const answer = await fetch("health/ready", { cache: "no-store", signal: AbortSignal.timeout(PERIOD_MS) });
    if (answer.ok) return noteAnswer();
  } catch {
    // The service still does not answer.
  }
  timer = setTimeout(ask, PERIOD_MS);
}

export function answers() {
  return isOnline;
}

/** Calls `action` at each change, until `signal` is aborted. */
export function onChange(action, signal) {
  changes.addEventListener("change", action, { signal });
}

/** Calls `action` each time that the service answers again. */
export function onReturn(action, signal) {
  onChange(() => isOnline && action(), signal);
}
