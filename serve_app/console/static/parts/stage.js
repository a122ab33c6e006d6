// A running job: its progress, its preview and its pictures.

import { fill, h } from "../lib/dom.js";
import * as words from "../pure/words.js";
import { result } from "./result.js";

/** Returns {root, show}. `show(state)` must be called with each state of `followJob`. */
export function stage(id) {
  const badge = h("span", { class: "badge" });
  const said = h("span", { class: "said" });
  const bar = h("progress", { max: 1, "aria-label": "Progress" });
  const pictures = h("div", { class: "pictures" });
  const news = h("p", { class: "unseen", role: "status" });
  const root = h("section", { class: "stage", "aria-label": "Job" }, h("div", { class: "status-line" }, badge, said), bar, pictures, news);
  const shown = new Map();
  let name = "";

  function show(state) {
    fill(badge, words.STATES[state.name] ?? state.name);
    badge.className = `badge ${state.name}`;
    fill(said, sentence(state));
    bar.hidden = !(state.name === "queued" || state.name === "running");
    if (state.name === "running" && state.progress) bar.value = state.progress.progress;
    else bar.removeAttribute("value");
    showPictures(state);
    if (state.name !== name) fill(news, `The job is ${words.STATES[state.name]?.toLowerCase() ?? state.name}. ${state.message}`);
    name = state.name;
  }

  function showPictures(state) {
    const known = [...state.images.keys()];
    const isOpen = state.name === "queued" || state.name === "running";
    const count = isOpen ? Math.max(state.asked, 1, ...known.map((index) => index + 1)) : Math.max(0, ...known.map((index) => index + 1));
    for (const index of [...shown.keys()].filter((each) => each >= count)) {
      shown.get(index).element.remove();
      shown.delete(index);
    }
    let previewed = false;
    for (let index = 0; index < count; index += 1) {
      const image = state.images.get(index);
      const preview = !image && !previewed ? state.preview : null;
      previewed ||= Boolean(preview);
      place(index, image, preview);
    }
  }

  function place(index, image, preview) {
    const want = image ? image.url : (preview ?? "");
    const there = shown.get(index);
    if (there?.want === want) return;
    if (there?.preview && preview) {
      there.preview.src = preview;
      there.want = want;
      return;
    }
    const entry = { want, ...(image ? { element: result(id, image) } : pending(preview)) };
    if (there) there.element.replaceWith(entry.element);
    else pictures.append(entry.element);
    shown.set(index, entry);
  }

  return { root, show };
}

function pending(preview) {
  const image = preview ? h("img", { src: preview, alt: "The picture so far", class: "preview" }) : null;
  return { preview: image, element: h("div", { class: "picture pending" }, image ?? h("span", { class: "developing", "aria-hidden": "true" })) };
}

function sentence({ name, progress, place, message, events, asked }) {
  if (name === "queued") return place ? placed(place) : "Waiting for a worker";
  if (name === "running") return progress ? progressed(progress, asked) : "Starting";
  if (name === "completed") return took(events);
  return message;
}

function placed({ queue_position: position, starts_in_s: starts }) {
  const first = position === 1 ? "Next in line" : `Number ${words.number(position)} in line`;
  return starts === undefined ? first : `${first}, begins in about ${words.seconds(starts)}`;
}

/** Returns the progress as a text. The steps of all samplers of the job are counted together. */
function progressed({ step, steps, class_type: node, rows }, asked) {
  const taken = `Step ${step} of ${steps}${asked > 1 ? ` for ${words.plural(asked, "picture")}` : ""}`;
  const shared = rows > 2 ? `${words.number(rows)} rows in a call` : "";
  return [taken, node, shared].filter(Boolean).join(" · ");
}

function took(events) {
  const at = (name) => events.find((each) => each.name === name)?.time;
  const [began, ended] = [at("submitted"), at("completed")];
  return began && ended ? `in ${words.seconds((new Date(ended) - new Date(began)) / 1000)}` : "";
}
