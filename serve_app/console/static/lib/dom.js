// Creates elements. Texts become text nodes and are never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PROPERTIES = new Set(["value", "checked", "disabled", "selected", "hidden", "open", "indeterminate", "readOnly"]);

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  const shown = children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false);
  element.append(...shown.map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

const ICONS = {
  close: "M6 6l12 12M18 6L6 18",
  download: "M12 4v11m0 0l-4.5-4.5M12 15l4.5-4.5M5 20h14",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  play: "M7 5l12 7-12 7z",
  stop: "M7 7h10v10H7z",
  trash: "M5 7h14M10 4h4M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  again: "M20 12a8 8 0 1 1-2.5-5.8M20 4v4.5h-4.5",
  copy: "M9 9h11v11H9zM5 15V4h11",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14zM16 16l5 5",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  fit: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
  back: "M14 6l-6 6 6 6",
  out: "M14 5H5v14h9M10 12h10m0 0l-4-4m4 4l-4 4",
  sound: "M5 9.5h3l4-3.5v12l-4-3.5H5zM15.5 9.5a4 4 0 0 1 0 5M18 7a8 8 0 0 1 0 10",
  text: "M6 4h12v16H6zM9 9h6M9 12.5h6M9 16h4",
  file: "M7 3.5h7l4 4v13H7zM14 3.5v4h4",
  upload: "M12 15V4m0 0L7.5 8.5M12 4l4.5 4.5M5 20h14",
};

export function icon(name) {
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

export function button(text, { kind = "plain", sign, ...attributes } = {}) {
  const content = [sign && icon(sign), h("span", {}, text)];
  return h("button", { type: "button", class: `button ${kind}`, ...attributes }, content);
}

/** Returns a button that shows only an icon. `text` is its name for screen readers. */
export function signButton(text, sign, attributes = {}) {
  return h("button", { type: "button", class: "button sign", "aria-label": text, title: text, ...attributes }, icon(sign));
}

export function link(text, href, attributes = {}) {
  return h("a", { href, ...attributes }, text);
}

/** Returns a function that calls `action` when `pause_ms` have passed since the function's last call. */
export function settled(action, pause_ms) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), pause_ms);
  };
}
