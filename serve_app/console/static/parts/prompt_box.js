// A text box that shows the prompt syntax during typing. A coloured copy of the text is behind the box.

import { fill, h } from "../lib/dom.js";
import { pieces, summary } from "../pure/prompt.js";
import { field } from "./fields.js";

const DEEPEST = 4;

export function promptBox(label, value, { rows = 4, hint, ...attributes } = {}) {
  const area = h("textarea", { rows, value, spellcheck: "true", class: "prompt-text", ...attributes });
  const copy = h("div", { class: "prompt-copy", "aria-hidden": "true" });
  const box = h("div", { class: "box prompt" }, copy, area);
  const said = h("p", { class: "hint syntax" });

  function show() {
    fill(copy, pieces(area.value).map(shown), "\n");
    fill(said, summary(area.value).join(", "));
    copy.scrollTop = area.scrollTop;
  }

  area.addEventListener("input", show);
  area.addEventListener("scroll", () => (copy.scrollTop = area.scrollTop));
  const made = field(label, area, { hint });
  made.root.append(said);
  show();
  return { ...made, show, insert: (text) => insert(area, text) };
}

function shown({ text, kind, depth }) {
  if (kind === "text" && depth === 0) return text;
  return h("span", { class: `piece ${kind} depth-${Math.min(depth, DEEPEST)}` }, text);
}

/** Inserts text at the cursor as if the user had typed it. */
function insert(area, text) {
  const before = area.value.slice(0, area.selectionStart);
  const space = before && !/\s$/.test(before) ? " " : "";
  area.setRangeText(space + text, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
  area.focus();
}
