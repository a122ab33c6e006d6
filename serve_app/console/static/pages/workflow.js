// The page for workflow jobs. A node graph can be pasted, dropped or chosen, and then shown, checked and run.

import { call, path, withQuery } from "../lib/api.js";
import * as catalogue from "../lib/catalogue.js";
import { button, fill, h, settled } from "../lib/dom.js";
import * as draft from "../lib/draft.js";
import * as router from "../lib/router.js";
import { isPng, texts } from "../pure/png.js";
import { NoWorkflow, nodesOf, parse, withInput } from "../pure/workflow.js";
import { dropPlace } from "../parts/drop.js";
import { endpointField, text } from "../parts/fields.js";
import { graphView } from "../parts/graph_view.js";
import { keepForm } from "../parts/keep_form.js";
import { nodeCard } from "../parts/node_card.js";
import { dialog, problem, toast } from "../parts/notices.js";
import { watcher } from "../parts/submit.js";
import { uploads } from "../parts/uploads.js";
import { costText } from "./diffusion.js";

const PAUSE_MS = 400;
const MOST_BYTES = 64 * 1024 * 1024;

export async function workflowPage({ signal }) {
  const kept = draft.kept("workflow") ?? {};
  const [types, endpoints] = await Promise.all([catalogue.nodeTypes(kept.endpoint), catalogue.endpointIds()]);
  return new WorkflowPage(types, endpoints, kept, signal).root;
}

class WorkflowPage {
  #read = null;
  #errors = {};
  #chosen = null;

  constructor(types, endpoints, kept, signal) {
    this.types = types;
    this.signal = signal;
    this.endpoint = endpointField(endpoints, kept.endpoint);
    this.callback = text("Callback URL", "", { type: "url", placeholder: "https://…" });
    this.area = h("textarea", { class: "code", rows: 10, spellcheck: "false", value: kept.text ?? "", placeholder: "Paste a workflow: “Save (API Format)” of ComfyUI, or the file of its editor", "aria-label": "Workflow as JSON" });
    this.graph = graphView({ onChoose: (id) => this.choose(id) });
    this.node = nodeCard({ onInput: (...change) => this.change(...change) });
    this.trouble = h("div");
    this.cost = h("p", { class: "hint cost", role: "status" });
    this.run = button("Run", { kind: "primary large", sign: "play", type: "submit", disabled: true });
    this.keep = button("Keep as named workflow", { disabled: true, onclick: () => this.#keep() });
    this.shown = watcher({ signal, hint: "Bring a workflow and press Run. Its pictures develop here while you watch." });
    this.uploads = uploads({ signal, onUpload: (name) => this.learn(name), onUse: (name) => this.use(name) });
    this.check = settled(() => this.#check(), PAUSE_MS);
    this.area.addEventListener("input", () => this.read());
    this.endpoint.control.addEventListener("change", () => this.useEndpoint());
    this.root = this.#layout();
    this.read();
  }

  #layout() {
    const form = h(
      "form",
      { class: "stack", onsubmit: (event) => this.submit(event), novalidate: true },
      this.node.root,
      this.trouble,
      h("div", { class: "submit" }, this.run, this.keep, this.cost),
      dropPlace("or drop a .json file, or a PNG that carries its workflow", { take: (file) => this.open(file), accept: ".json,application/json,image/png" }),
      this.area,
      h("div", { class: "fields" }, this.endpoint.root, this.callback.root),
    );
    form.addEventListener("keydown", (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && form.requestSubmit());
    const left = h("section", { class: "panel", "aria-label": "Request" }, form);
    const right = h("div", { class: "stack" }, this.shown.root, this.uploads.root);
    return h("div", { class: "page" }, h("h1", {}, "Workflow"), this.graph.root, h("div", { class: "split halves" }, left, right));
  }

  /** Parses the current text, and shows the workflow. */
  read() {
    draft.keep("workflow", { text: this.area.value, endpoint: this.endpoint.control.value });
    this.#read = null;
    fill(this.trouble);
    fill(this.cost);
    try {
      this.#read = this.area.value.trim() ? parse(this.area.value) : null;
    } catch (error) {
      if (!(error instanceof NoWorkflow)) throw error;
      fill(this.trouble, problem(error));
    }
    this.run.disabled = this.keep.disabled = this.#read === null;
    this.#errors = {};
    this.#draw();
    if (this.#read) this.check();
  }

  /** Shows the node types of the chosen endpoint. */
  async useEndpoint() {
    const endpoint = this.endpoint.control.value;
    this.read();
    try {
      const types = await catalogue.nodeTypes(endpoint);
      if (endpoint !== this.endpoint.control.value) return;
      this.types = types;
      this.#draw();
    } catch (error) {
      toast(error.message);
    }
  }

  #draw() {
    const nodes = this.#read?.graph ? nodesOf(this.#read.graph) : [];
    this.graph.show(nodes, this.#errors, this.types);
    const chosen = nodes.find((each) => each.id === this.#chosen);
    if (!this.node.root.contains(document.activeElement)) this.node.show(chosen, this.#errors[this.#chosen], this.types[chosen?.type]);
  }

  choose(id) {
    this.#chosen = this.#chosen === id ? null : id;
    this.#draw();
    if (this.#chosen !== null) this.node.root.scrollIntoView({ block: "nearest" });
  }

  change(id, name, value) {
    const graph = withInput(this.#read.graph, id, name, value);
    this.area.value = JSON.stringify({ ...this.#read.body, prompt: graph }, null, 2);
    this.read();
  }

  async open(file) {
    if (file.size > MOST_BYTES) return toast(`${file.name} is too large for a workflow`);
    try {
      const bytes = new Uint8Array(await file.arrayBuffer());
      const carried = isPng(bytes) ? await texts(bytes) : null;
      const found = carried ? (carried.prompt ?? carried.workflow) : new TextDecoder().decode(bytes);
      if (found === undefined) return toast(`${file.name} carries no workflow`);
      this.area.value = pretty(found);
      this.#chosen = null;
      this.read();
    } catch (error) {
      toast(`${file.name} cannot be read: ${error.message}`);
    }
  }

  /** Adds an uploaded image to the choices of nodes that load images. */
  learn(name) {
    for (const type of ["LoadImage", "LoadImageMask"]) {
      const declared = this.types[type]?.input.required.image;
      if (Array.isArray(declared?.[0]) && !declared[0].includes(name)) declared[0].unshift(name);
    }
    this.read();
  }

  /** Sets the image of the chosen node, or of the first node that loads an image. */
  use(name) {
    const loads = (id) => this.#read?.graph?.[id]?.class_type.startsWith("LoadImage");
    const id = loads(this.#chosen) ? this.#chosen : Object.keys(this.#read?.graph ?? {}).find(loads);
    if (id === undefined) return toast("This workflow has no node that loads an image");
    this.change(id, "image", name);
    toast(`Node ${id} loads ${name}`);
  }

  async #check() {
    const read = this.#read;
    try {
      const url = withQuery("workflow/v1/check", { endpoint: this.endpoint.control.value });
      const found = await call(url, { method: "POST", json: read.body, signal: this.signal });
      if (read === this.#read) fill(this.cost, costText(found));
    } catch (error) {
      if (!this.signal.aborted && read === this.#read) this.refuse(error);
    }
  }

  /** Shows an error and the nodes that it concerns. */
  refuse(error) {
    this.#errors = error.nodeErrors ?? {};
    const wrong = Object.entries(this.#errors).map(([id, each]) =>
      h("li", {}, h("button", { type: "button", class: "chip", onclick: () => this.choose(id) }, `Node ${id}, ${each.class_type ?? ""}`), " ", each.errors?.[0]?.message ?? "", " ", each.errors?.[0]?.details ?? ""),
    );
    const shown = problem(wrong.length ? { ...error, message: error.message, details: "" } : error);
    if (wrong.length) shown.append(h("ul", {}, wrong));
    fill(this.trouble, shown);
    this.#draw();
  }

  /** Asks for a name, and opens the page of the new named workflow. */
  #keep() {
    const content = { prompt: this.#read.graph ?? this.#read.body, endpoint: this.endpoint.control.value };
    dialog("Keep as named workflow", (close) =>
      keepForm(content, ({ name, shown }) => {
        close();
        router.go(`#/${path("workflows", `${name}@${shown}`)}`);
      }),
    );
  }

  async submit(event) {
    event.preventDefault();
    if (!this.#read) return;
    this.run.disabled = true;
    fill(this.trouble);
    try {
      await this.shown.submit("workflow/v1/generate", this.#read.body, { endpoint: this.endpoint.control.value, callback_url: this.callback.control.value.trim() });
    } catch (error) {
      if (!this.signal.aborted) this.refuse(error);
    } finally {
      this.run.disabled = this.#read === null;
    }
  }
}

function pretty(found) {
  try {
    return JSON.stringify(JSON.parse(found), null, 2);
  } catch {
    return found;
  }
}
