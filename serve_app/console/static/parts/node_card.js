// One node of a workflow with its errors and its values. The values can be changed.

import { fill, h } from "../lib/dom.js";
import { declarationOf, optionsOf, typed } from "../pure/workflow.js";
import { choice, field } from "./fields.js";

const LONG = 60;

/** Returns {root, show}. `onInput(id, name, value)` is called with each change of a value. */
export function nodeCard({ onInput }) {
  const root = h("section", { class: "card", "aria-live": "polite", hidden: true });

  function show(node, wrong, type) {
    root.hidden = !node;
    if (!node) return;
    const errors = wrong?.errors ?? [];
    fill(
      root,
      h("div", { class: "card-head" }, h("h2", {}, node.title), h("span", { class: "hint" }, node.title === node.type ? `Node ${node.id}` : `${node.type}, node ${node.id}`)),
      errors.length > 0 && h("div", { class: "problem" }, errors.map((each) => h("p", {}, h("b", {}, each.message), ` ${each.details ?? ""}`))),
      node.values.map((pair) => valueField(node.id, pair, type).root),
      node.links.length > 0 && h("p", { class: "hint" }, "Takes ", node.links.map((each) => `${each.input} from node ${each.from}`).join(", "), "."),
    );
  }

  function valueField(id, [name, value], type) {
    const options = optionsOf(declarationOf(type, name));
    if (options && typeof value === "string") {
      const made = choice(name, options, value);
      made.control.addEventListener("change", () => onInput(id, name, made.control.value));
      return made;
    }
    const shown = typeof value === "string" ? value : JSON.stringify(value);
    const control = shown.length > LONG || name === "text" ? h("textarea", { rows: 4, value: shown }) : h("input", { type: "text", value: shown });
    const made = field(name, control);
    control.addEventListener("change", () => {
      const now = typed(control.value, value);
      made.complain(now === undefined ? `This is no ${typeof value}.` : null);
      if (now !== undefined) onInput(id, name, now);
    });
    return made;
  }

  return { root, show };
}
