// The callback of a job: its address, its attempts, and a button for a redelivery.

import { call, path } from "../lib/api.js";
import { button, fill, h } from "../lib/dom.js";
import * as session from "../lib/session.js";
import * as words from "../pure/words.js";
import { toast } from "./notices.js";

const STATES = { pending: "An attempt will follow", delivered: "Delivered", exhausted: "Given up" };

/** Returns {root, refresh}. Nothing is shown for a job without a callback. */
export function callbackCard(job, { signal }) {
  const url = `${path("v1", "jobs", job.request_id)}/callbacks`;
  const root = h("section", { class: "card", "aria-labelledby": "callback", hidden: !job.callback_url });

  function show(report) {
    const again = button("Deliver again", { sign: "again", onclick: () => redeliver(again) });
    fill(
      root,
      h("h2", { id: "callback" }, "Callback"),
      h("p", { class: "break" }, h("code", {}, report.callback_url)),
      h("p", {}, STATES[report.state] ?? report.state, report.next_try_at && `, next at ${words.clock(report.next_try_at)}`, report.message && `: ${report.message}`),
      h("ol", { class: "timeline" }, report.tries.map(entry)),
      report.state !== "pending" && session.may("generate") && h("div", { class: "actions" }, again),
    );
  }

  async function redeliver(control) {
    control.disabled = true;
    try {
      show(await call(`${url}/redeliver`, { method: "POST", signal }));
      toast("It is delivered once more");
    } catch (error) {
      control.disabled = false;
      if (!signal.aborted) toast(error.message);
    }
  }

  async function refresh() {
    if (job.callback_url) show(await call(url, { signal }));
  }

  refresh().catch((error) => !signal.aborted && fill(root, h("p", {}, error.message)));
  return { root, refresh };
}

function entry({ at, status, latency_s: took, error }) {
  const isDone = status >= 200 && status < 300;
  return h(
    "li",
    { class: isDone ? "completed" : "failed" },
    h("span", { class: "what" }, status ? `Answered ${status}` : error, ` after ${words.seconds(took)}`),
    h("time", { datetime: at, title: at }, words.clock(at)),
  );
}
