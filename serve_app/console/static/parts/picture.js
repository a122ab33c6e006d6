// A picture of a job, and the same picture in full size.

import { h, link } from "../lib/dom.js";
import { pictureUrl } from "../lib/api.js";
import { dialog } from "./notices.js";

/** Returns a picture. `image` is an image of a result or of the event `image_stored`, with its `index`. */
export function picture(id, image) {
  const url = pictureUrl(image.url ?? "");
  if (!isShown(url)) return file(id, image, url);
  const name = `Picture ${image.index + 1}${image.seed === undefined ? "" : `, seed ${image.seed}`}`;
  const shown = h("img", { src: url, alt: name, width: image.width, height: image.height, loading: "lazy", decoding: "async" });
  return h(
    "figure",
    { class: "picture" },
    h("button", { type: "button", class: "open", "aria-label": `Enlarge: ${name}`, onclick: () => enlarge(id, image, url, name) }, shown),
    h("figcaption", {}, caption(image), download(id, image, url)),
  );
}

/** Returns whether browsers can show the file. They cannot show a latent. */
export function isShown(url) {
  return /\.(png|webp|jpg)$/.test(url.split("?")[0]);
}

function caption(image) {
  const size = image.width ? `${image.width} × ${image.height}` : "";
  return h("span", {}, [size, image.seed === undefined ? "" : `seed ${image.seed}`].filter(Boolean).join(" · "));
}

export function fileName(id, image, url) {
  const suffix = url.split("?")[0].split(".").at(-1);
  return `${id}-${image.index}.${suffix}`;
}

function download(id, image, url) {
  const name = fileName(id, image, url);
  const element = link("Save", url, { download: name, class: "save", "aria-label": `Save picture ${image.index + 1}` });
  return element;
}

/** Returns a link to a file that browsers cannot show, such as a latent. */
function file(id, image, url) {
  return h("div", { class: "picture file" }, link(fileName(id, image, url), url, { download: fileName(id, image, url) }));
}

function enlarge(id, image, url, name) {
  dialog(
    name,
    () => [
      h("img", { class: "large", src: url, alt: name }),
      h("div", { class: "actions" }, caption(image), link("Save", url, { class: "button primary", download: fileName(id, image, url) })),
    ],
    { kind: "wide" },
  );
}
