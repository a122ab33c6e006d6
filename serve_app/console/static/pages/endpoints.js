// The page with the current workers, queues and loaded models of endpoints.

import { call, path } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import * as online from "../lib/online.js";
import * as words from "../pure/words.js";
import { empty, problem } from "../parts/notices.js";

const PERIOD_MS = 3000;
const WORKER_STATES = { starting: "Starting", ready: "Ready", leaving: "Leaving" };

export async function endpointsPage({ signal }) {
  const cards = h("div", { class: "cards" });
  const trouble = h("div");
  let timer;

  async function load() {
    const { endpoints } = await call("v1/endpoints", { signal });
    const found = await Promise.all(endpoints.map(({ id }) => call(path("v1", "endpoints", id), { signal }).catch(() => null)));
    const shown = found.filter(Boolean);
    fill(cards, shown.length ? shown.map(card) : empty("No endpoints", "None that this key may see."));
  }

  async function again() {
    clearTimeout(timer);
    try {
      if (!document.hidden) await load();
      fill(trouble);
    } catch (error) {
      if (signal.aborted) return;
      fill(trouble, problem(error));
    }
    if (!signal.aborted) timer = setTimeout(again, PERIOD_MS);
  }

  await load();
  timer = setTimeout(again, PERIOD_MS);
  online.onReturn(again, signal);
  signal.addEventListener("abort", () => clearTimeout(timer));
  return h("div", { class: "page" }, h("h1", {}, "Endpoints"), trouble, cards);
}

function card(endpoint) {
  const { id, state, workers, warm_checkpoints: warm } = endpoint;
  return h(
    "section",
    { class: "card", "aria-label": `Endpoint ${id}` },
    h("div", { class: "card-head" }, h("h2", {}, id), h("span", { class: `badge ${state}` }, state)),
    h("div", { class: "figures" }, figures(endpoint).map(([value, name]) => h("div", { class: "figure" }, h("b", {}, value), h("span", {}, name)))),
    h("h3", {}, `Workers, ${endpoint.min_workers} to ${endpoint.max_workers}`),
    workerList(workers),
    h("h3", {}, "Warm models"),
    warm?.length ? h("div", { class: "tags" }, warm.map((each) => h("span", { class: "tag" }, each))) : h("p", { class: "hint" }, "None is loaded; the first job waits for its checkpoint."),
    endpoint.owner && h("p", { class: "hint" }, `Of ${endpoint.owner} alone`),
  );
}

function figures({ queued, running, oldest_waiting_s: oldest, rate_per_s: rate }) {
  const known = (value, shown = words.number) => (value === undefined ? "–" : shown(value));
  return [
    [known(queued), "waiting or running"],
    [known(running), "running"],
    [known(oldest, words.seconds), "waits longest"],
    [known(rate && rate * 60), "a minute"],
  ];
}

function workerList(workers) {
  if (!workers) return h("p", { class: "hint" }, "No dispatcher says anything of them at the moment.");
  if (!workers.length) return h("p", { class: "hint" }, "None at the moment. They come with jobs.");
  return h(
    "ul",
    { class: "timeline" },
    workers.map(({ state, running, trouble, is_current: isCurrent }) =>
      h(
        "li",
        { class: state === "ready" ? "completed" : "" },
        h("span", { class: "what" }, WORKER_STATES[state] ?? state, !isCurrent && ", to be replaced", trouble && h("span", { class: "wrong" }, ` ${trouble}`)),
        h("span", { class: "hint" }, words.plural(running, "job")),
      ),
    ),
  );
}
