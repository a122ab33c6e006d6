// The page with the usage and the limits of the key's owner.

import { call } from "../lib/api.js";
import { h } from "../lib/dom.js";
import * as words from "../pure/words.js";

const AMOUNTS = [
  ["open_jobs", "Jobs that wait or run", words.number],
  ["log_bytes", "Event log", words.bytes],
  ["result_bytes", "Pictures", words.bytes],
  ["upload_bytes", "Input files", words.bytes],
];

export async function usePage({ signal }) {
  const usage = await call("v1/usage", { signal });
  return h(
    "div",
    { class: "page" },
    h("h1", {}, "Use"),
    h("section", { class: "card", "aria-label": "Limits" }, h("h2", {}, `All keys of ${usage.owner} together`), AMOUNTS.map(([name, label, shown]) => meter(label, usage[name], shown))),
    h(
      "section",
      { class: "card", "aria-label": "This key" },
      h("h2", {}, "This key"),
      h("dl", { class: "facts" }, h("div", {}, h("dt", {}, "Id"), h("dd", {}, h("code", {}, usage.key_id))), h("div", {}, h("dt", {}, "May"), h("dd", {}, usage.scopes.join(", ")))),
    ),
  );
}

function meter(label, { used, limit }, shown) {
  const text = limit === null ? `${shown(used)}, without a limit` : `${shown(used)} of ${shown(limit)}`;
  const bar = limit !== null && h("meter", { min: 0, max: limit, low: limit * 0.8, high: limit * 0.95, optimum: 0, value: used, "aria-label": label });
  return h("div", { class: "meter" }, h("div", { class: "line" }, h("span", {}, label), h("span", {}, text)), bar);
}
