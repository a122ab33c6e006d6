// One job in the gallery.

import { h, icon, link } from "../lib/dom.js";
import { fileUrl } from "../lib/api.js";
import { kindOf, thumbnailUrl } from "../pure/media.js";
import * as words from "../pure/words.js";

const ICONS = { video: "play", audio: "sound", text: "text", model: "file", file: "file" };

export function tile(job, name) {
  const made = job.results.filter((each) => each.url);
  const state = words.STATES[job.state] ?? job.state;
  const frame = h(
    "div",
    { class: "frame" },
    thumbnail(made),
    job.state !== "completed" && h("span", { class: `badge ${job.state}`, "aria-hidden": "true" }, state),
    made.length > 0 && job.result_count > 1 && h("span", { class: "count", "aria-hidden": "true" }, job.result_count),
  );
  const when = `${words.ago(job.created_at)}${job.flavour === "workflow" ? " · workflow" : ""}`;
  const spoken = h("span", { class: "unseen" }, state.toLowerCase());
  return link([frame, h("span", { class: "name" }, name), spoken, h("span", { class: "hint" }, when)], `#/job/${job.request_id}`, { class: "tile" });
}

/** Returns the first picture or poster, or else the beginning of a text or an icon. */
function thumbnail(made) {
  const shown = made.find(thumbnailUrl);
  if (shown) {
    const image = h("img", { src: fileUrl(thumbnailUrl(shown)), alt: "", loading: "lazy", decoding: "async" });
    return [image, kindOf(shown) === "video" && h("span", { class: "plays" }, icon("play"))];
  }
  if (made[0]?.text) return h("p", { class: "excerpt", "aria-hidden": "true" }, made[0].text);
  return icon(made.length ? (ICONS[kindOf(made[0])] ?? "image") : "image");
}
