// The caller's input files, which nodes can load. New files can be dropped here.

import { all, call, path, request } from "../lib/api.js";
import { fill, h, signButton } from "../lib/dom.js";
import { dropPlace } from "./drop.js";
import { confirmed, toast } from "./notices.js";

const SHOWN = 24;
export const FILES = "image/png,image/jpeg,image/webp,video/*,audio/*,.mkv,.latent";

/** Stores a file as an upload and returns the name of the upload. Raises ApiError, Unreachable. */
export async function upload(file, { signal }) {
  const form = new FormData();
  form.append("image", file);
  return (await call("v1/uploads", { method: "POST", body: form, signal })).name;
}

/** Returns {root, load}. `onUpload(name)` is called with each new file, `onUse(name)` with a chosen file. */
export function uploads({ signal, onUpload, onUse }) {
  const list = h("div", { class: "uploads" });
  const root = h(
    "section",
    { class: "card", "aria-labelledby": "uploads" },
    h("h2", { id: "uploads" }, "Input files"),
    dropPlace("or drop images, videos or audio files here", { take: send, accept: FILES, multiple: true }),
    list,
  );

  async function send(file) {
    try {
      const name = await upload(file, { signal });
      toast(`${name} is uploaded`);
      onUpload(name);
      await load();
    } catch (error) {
      if (!signal.aborted) toast(`${file.name}: ${error.message}`);
    }
  }

  async function load() {
    const found = (await all("v1/uploads", "uploads", { signal })).slice(0, SHOWN);
    fill(list, found.map((each) => entry(each)));
  }

  function entry({ name, width, height, media_type }) {
    const image = h("img", { alt: "", loading: "lazy" });
    if (media_type === "image/png") show(image, name).catch(() => {});
    const remove = signButton(`Remove ${name}`, "trash", { onclick: () => removeUpload(name) });
    const use = h("button", { type: "button", class: "chip", onclick: () => onUse(name) }, "Use");
    return h("div", { class: "upload" }, image, h("span", { title: name }, name), h("span", { class: "hint" }, width ? `${width} × ${height}` : media_type), h("div", { class: "presets" }, use, remove));
  }

  async function show(image, name) {
    const answer = await request(path("v1", "uploads", name), { signal });
    const url = URL.createObjectURL(await answer.blob());
    image.src = url;
    signal.addEventListener("abort", () => URL.revokeObjectURL(url));
  }

  async function removeUpload(name) {
    if (!(await confirmed(`Remove ${name}?`, "Jobs that were accepted with it still get it.", "Remove"))) return;
    try {
      await call(path("v1", "uploads", name), { method: "DELETE" });
      await load();
    } catch (error) {
      toast(error.message);
    }
  }

  load().catch((error) => !signal.aborted && toast(error.message));
  return { root, load };
}
