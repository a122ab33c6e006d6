// One job in the gallery.

import { h, icon, link } from "../lib/dom.js";
import { pictureUrl } from "../lib/api.js";
import { isShown } from "./picture.js";
import * as words from "../pure/words.js";

export function tile(job, name) {
  const made = job.results.map((each) => pictureUrl(each.url ?? "")).filter(isShown);
  const state = words.STATES[job.state] ?? job.state;
  const frame = h(
    "div",
    { class: "frame" },
    made.length ? h("img", { src: made[0], alt: "", loading: "lazy", decoding: "async" }) : icon("image"),
    job.state !== "completed" && h("span", { class: `badge ${job.state}`, "aria-hidden": "true" }, state),
    made.length > 0 && job.result_count > 1 && h("span", { class: "count", "aria-hidden": "true" }, job.result_count),
  );
  const when = `${words.ago(job.created_at)}${job.flavour === "workflow" ? " · workflow" : ""}`;
  const spoken = h("span", { class: "unseen" }, state.toLowerCase());
  return link([frame, h("span", { class: "name" }, name), spoken, h("span", { class: "hint" }, when)], `#/job/${job.request_id}`, { class: "tile" });
}
