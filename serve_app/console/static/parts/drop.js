// An area where files can be dropped or chosen.

import { h, icon } from "../lib/dom.js";

/** Returns the area. `take(file)` is called with each file that is dropped or chosen. */
export function dropPlace(text, { take, accept, multiple = false }) {
  const input = h("input", { type: "file", accept, multiple, "aria-label": text, onchange: () => (takeAll(input.files), (input.value = "")) });
  const choose = h("button", { type: "button", class: "button", onclick: () => input.click() }, icon("upload"), h("span", {}, multiple ? "Choose files" : "Choose a file"));
  const root = h("div", { class: "drop" }, input, choose, h("span", {}, text));
  input.tabIndex = -1;

  function takeAll(files) {
    for (const file of multiple ? files : [...files].slice(0, 1)) take(file);
  }

  root.addEventListener("dragover", (event) => (event.preventDefault(), root.classList.add("over")));
  root.addEventListener("dragleave", () => root.classList.remove("over"));
  root.addEventListener("drop", (event) => {
    event.preventDefault();
    root.classList.remove("over");
    takeAll(event.dataTransfer.files);
  });
  return root;
}

/** A file that is dropped beside an area must not replace the page. */
for (const name of ["dragover", "drop"]) addEventListener(name, (event) => event.preventDefault());
