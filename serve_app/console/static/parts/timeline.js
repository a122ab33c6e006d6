// The stored events of a job, each with the time since the previous event.

import { fill, h } from "../lib/dom.js";
import { clock, eventText, since } from "../pure/words.js";

export function timeline() {
  const list = h("ol", { class: "timeline" });
  const root = h("section", { class: "card", "aria-labelledby": "timeline" }, h("h2", { id: "timeline" }, "Timeline"), list);

  function show(events) {
    if (list.children.length === events.length) return;
    fill(list, events.map((event, index) => entry(event, events[index - 1])));
  }

  return { root, show };
}

function entry({ name, time, data }, before) {
  return h(
    "li",
    { class: name },
    h("span", { class: "what" }, eventText(name, data)),
    h("time", { datetime: time, title: time }, clock(time), " ", h("span", { class: "since" }, since(time, before?.time))),
  );
}
