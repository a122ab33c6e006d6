// A result of a job, such as a picture or a video.

import { h, link } from "../lib/dom.js";
import { fileUrl } from "../lib/api.js";
import { kindOf, nameOf } from "../pure/media.js";
import * as words from "../pure/words.js";
import { dialog } from "./notices.js";

const VIEWS = { image: picture, video, audio: sound, text };

/** Returns a result. `item` is an item of `results` or the data of the event `image_stored`, with its `index`. */
export function result(id, item) {
  const url = fileUrl(item.url ?? "");
  const name = `${nameOf(item)}${item.seed === undefined ? "" : `, seed ${item.seed}`}`;
  const shown = VIEWS[kindOf(item)]?.(item, { id, url, name });
  if (!shown) return file(id, item, url);
  return h("figure", { class: `picture ${kindOf(item)}` }, shown, h("figcaption", {}, caption(item), download(id, item, url)));
}

function picture(item, { id, url, name }) {
  const shown = h("img", { src: url, alt: name, width: item.width, height: item.height, loading: "lazy", decoding: "async" });
  return h("button", { type: "button", class: "open", "aria-label": `Enlarge: ${name}`, onclick: () => enlarge(id, item, url, name) }, shown);
}

function video(item, { url, name }) {
  const poster = item.poster_url && fileUrl(item.poster_url);
  return h("video", { src: url, poster, "aria-label": name, controls: true, playsinline: true, preload: poster ? "none" : "metadata", width: item.width, height: item.height });
}

function sound(item, { url, name }) {
  return h("audio", { src: url, "aria-label": name, controls: true, preload: "metadata" });
}

/** Returns nothing for a long text, which only its file contains. */
function text(item, { name }) {
  return item.text !== undefined && h("pre", { tabindex: 0, role: "group", "aria-label": name }, item.text);
}

function caption(item) {
  const size = item.width ? `${item.width} × ${item.height}` : "";
  const duration = item.duration_s === undefined ? "" : words.seconds(item.duration_s);
  return h("span", {}, [size, duration, item.seed === undefined ? "" : `seed ${item.seed}`].filter(Boolean).join(" · "));
}

export function fileName(id, item, url) {
  const suffix = url.split("?")[0].split(".").at(-1);
  return `${id}-${item.index}.${suffix}`;
}

function download(id, item, url) {
  return link("Save", url, { download: fileName(id, item, url), class: "save", "aria-label": `Save ${nameOf(item).toLowerCase()}` });
}

/** Returns a link to a file that browsers cannot show, such as a latent. */
function file(id, item, url) {
  return h("div", { class: "picture file" }, link(fileName(id, item, url), url, { download: fileName(id, item, url) }));
}

function enlarge(id, item, url, name) {
  dialog(
    name,
    () => [
      h("img", { class: "large", src: url, alt: name }),
      h("div", { class: "actions" }, caption(item), link("Save", url, { class: "button primary", download: fileName(id, item, url) })),
    ],
    { kind: "wide" },
  );
}
