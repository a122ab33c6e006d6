// Draws a workflow: nodes that can be chosen, the links between nodes, and errors at their nodes.

import { fill, h, signButton, svg } from "../lib/dom.js";
import { layout, shownValues, WIDTH } from "../pure/layout.js";
import { plural } from "../pure/words.js";

const LINE = 16;
const HEAD = 34;
const LONGEST = 30;
const SMALLEST_FIT = 0.6;
const ZOOMS = [0.4, 0.55, 0.75, 1, 1.35, 1.8];
const KINDS = new Set(["MODEL", "CLIP", "CONDITIONING", "LATENT", "VAE", "IMAGE", "MASK"]);

/** Returns {root, show}. `show(nodes, errors, types)` takes the service's errors by node and types by class. */
export function graphView({ onChoose = null }) {
  const canvas = h("div", { class: "graph-canvas", role: "group", "aria-label": "Workflow graph", tabindex: "0" });
  let zoom = null;
  let drawn = null;
  const resize = (step) => {
    const now = zoom ?? fitting();
    const next = step > 0 ? ZOOMS.find((each) => each > now + 0.01) : ZOOMS.findLast((each) => each < now - 0.01);
    zoom = next ?? now;
    size();
  };
  const tools = h(
    "div",
    { class: "graph-tools" },
    signButton("Smaller", "minus", { onclick: () => resize(-1) }),
    signButton("Larger", "plus", { onclick: () => resize(1) }),
    signButton("Fit", "fit", { onclick: () => ((zoom = null), size()) }),
  );
  const root = h("div", { class: "graph", hidden: true }, canvas, tools);

  const fitting = () => Math.min(1, Math.max(SMALLEST_FIT, (canvas.clientWidth - 8) / (drawn?.plan.width ?? 1)));

  function size() {
    if (!drawn) return;
    const scale = zoom ?? fitting();
    drawn.picture.setAttribute("width", drawn.plan.width * scale);
    drawn.picture.setAttribute("height", drawn.plan.height * scale);
  }

  function show(nodes, errors = {}, types = {}) {
    root.hidden = nodes.length === 0;
    const plan = layout(nodes);
    const picture = svg("svg", { viewBox: `0 0 ${plan.width} ${plan.height}` }, plan.edges.map((each) => line(each, plan, types)), [...plan.boxes.values()].map((box) => nodeBox(box, errors[box.node.id], onChoose)));
    drawn = { plan, picture };
    fill(canvas, picture);
    size();
  }

  new ResizeObserver(size).observe(canvas);
  return { root, show };
}

function line({ from, output, path }, plan, types) {
  const type = types[plan.boxes.get(from).node.type]?.output?.[output];
  return svg("path", { d: path, class: `link ${KINDS.has(type) ? type.toLowerCase() : "other"}` });
}

function nodeBox({ x, y, width, height, node }, wrong, onChoose) {
  const count = wrong?.errors?.length ?? 0;
  const number = `#${cut(node.id, 6)}${count ? ` · ${plural(count, "error")}` : ""}`;
  // Screen readers use the texts in a button as its name.
  const choose = onChoose && {
    tabindex: 0,
    role: "button",
    onclick: () => onChoose(node.id),
    onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onChoose(node.id)),
  };
  const hidden = node.values.length - shownValues(node).length;
  const texts = [...shownValues(node).map(([key, value]) => `${key}: ${short(value)}`), ...(hidden ? [`and ${hidden} more`] : [])];
  return svg(
    "g",
    { class: `node${count ? " wrong" : ""}`, transform: `translate(${x} ${y})`, ...(choose ?? { role: "img", "aria-label": `${node.title} ${number}` }) },
    svg("rect", { width, height, rx: 8 }),
    svg("path", { d: `M 0 ${HEAD - 2} H ${width}`, class: "rule" }),
    svg("text", { x: 10, y: 22, class: "title" }, cut(node.title, count ? 13 : 24)),
    svg("text", { x: WIDTH - 10, y: 22, class: "id", "text-anchor": "end" }, number),
    texts.map((each, index) => svg("text", { x: 10, y: HEAD + 14 + index * LINE }, cut(each, LONGEST))),
  );
}

function short(value) {
  return typeof value === "string" ? value.replaceAll("\n", " ") : JSON.stringify(value);
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
