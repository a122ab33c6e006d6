// Submits a job, and shows its progress beside the form.

import { call, path, withQuery } from "../lib/api.js";
import { button, fill, h, link } from "../lib/dom.js";
import { followJob } from "./job_state.js";
import { empty, problem, toast } from "./notices.js";
import { stage } from "./stage.js";

/** Submits a job by a POST of `body`. Raises ApiError, Unreachable. */
export function submitJob(url, body, { query = {}, signal } = {}) {
  const headers = { "Idempotency-Key": freshName() };
  return twice(() => call(withQuery(url, { ...query, preview: true }), { method: "POST", json: body, headers, signal }));
}

/** Returns {root, submit}. `submit(url, body, query)` submits a job and shows it; see `submitJob`. */
export function watcher({ signal, hint }) {
  const root = h("div", { class: "watch" }, empty("Nothing here yet", hint));
  let watching = new AbortController();
  signal.addEventListener("abort", () => watching.abort());

  async function submit(url, body, query) {
    const job = await submitJob(url, body, { query, signal });
    watching.abort();
    watching = new AbortController();
    watch(job.request_id, watching.signal);
    return job;
  }

  async function watch(id, until) {
    const shown = stage(id);
    const cancel = button("Cancel", { sign: "stop", onclick: () => cancelJob(id, cancel) });
    const actions = h("div", { class: "actions" }, cancel, link("Open the job", `#/job/${id}`, { class: "button" }));
    const trouble = h("div");
    fill(root, shown.root, actions, trouble);
    shown.show({ name: "queued", events: [], images: new Map(), asked: 1, message: "" });
    try {
      await followJob(id, { signal: until, onChange: shown.show });
      cancel.remove();
    } catch (error) {
      if (!until.aborted) fill(trouble, problem(error));
    }
  }

  return { root, submit };
}

/** Returns a new idempotency key, so that a request that is sent twice creates only one job. */
function freshName() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Sends a request, and sends it again if no answer arrives. */
async function twice(send) {
  try {
    return await send();
  } catch (error) {
    if (error.status !== undefined || error.name === "AbortError") throw error;
    return send();
  }
}

export async function cancelJob(id, control) {
  control.disabled = true;
  try {
    const { cancelled } = await call(`${path("v1", "jobs", id)}/cancel`, { method: "POST" });
    toast(cancelled ? "The job is being cancelled" : "The job had ended before");
  } catch (error) {
    control.disabled = false;
    toast(error.message);
  }
}
