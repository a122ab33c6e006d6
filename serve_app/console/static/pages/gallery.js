// The page with all jobs of the caller, newest first. More jobs are loaded when the user scrolls.

import * as api from "../lib/api.js";
import * as catalogue from "../lib/catalogue.js";
import { button, fill, h, icon, link, settled } from "../lib/dom.js";
import * as online from "../lib/online.js";
import * as session from "../lib/session.js";
import { follow } from "../lib/stream.js";
import { Titles } from "../parts/titles.js";
import { empty, problem, waiting } from "../parts/notices.js";
import { tile } from "../parts/tile.js";

const PAGE = 24;
const STATES = [["", "All"], ["0", "Open"], ["1", "Completed"], ["2", "Failed"]];
const FLAVOURS = [["", "Both"], ["diffusion", "Diffusion"], ["workflow", "Workflow"]];
const SETTLE_MS = 400;

export async function galleryPage({ signal }) {
  const endpoints = await catalogue.endpointIds();
  const filters = { status: "", flavour: "", endpoint: "" };
  const view = new Gallery(filters, signal);
  const change = (name) => (value) => {
    filters[name] = value;
    view.restart();
  };
  const search = h("input", { type: "search", placeholder: "Search prompts", "aria-label": "Search prompts, ids and messages", oninput: settled(() => view.search(search.value), SETTLE_MS) });
  const bar = h(
    "div",
    { class: "filters" },
    h("div", { class: "search" }, icon("search"), search),
    chips("State", STATES, change("status")),
    chips("Flavour", FLAVOURS, change("flavour")),
    endpoints?.length > 1 && chips("Endpoint", [["", "Any endpoint"], ...endpoints.map((id) => [id, id])], change("endpoint")),
  );
  view.restart();
  return h("div", { class: "page" }, h("h1", {}, "Gallery"), bar, view.root);
}

/** Returns a group of buttons of which exactly one is pressed. */
function chips(label, options, choose) {
  const group = h("div", { class: "presets", role: "group", "aria-label": label });
  const made = options.map(([value, text], index) =>
    h("button", { type: "button", class: "chip", "aria-pressed": String(index === 0), onclick: (event) => press(event.currentTarget, value) }, text),
  );
  const press = (chosen, value) => {
    for (const each of made) each.setAttribute("aria-pressed", String(each === chosen));
    choose(value);
  };
  return h("div", { class: "presets" }, fill(group, made));
}

class Gallery {
  #grid = h("div", { class: "gallery" });
  #end = h("div", { class: "gallery-end" });
  #said = h("p", { class: "unseen", role: "status" });
  #tiles = new Map();
  #cursor = undefined;
  #wanted = "";
  #isLoading = false;
  #isWhole = false;
  #run = 0;

  constructor(filters, signal) {
    this.filters = filters;
    this.signal = signal;
    this.root = h("div", { class: "stack" }, this.#grid, this.#end, this.#said);
    this.titles = new Titles(signal);
    this.observer = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && this.#more(), { rootMargin: "600px" });
    this.observer.observe(this.#end);
    signal.addEventListener("abort", () => this.observer.disconnect());
    this.refresh = settled(() => this.#newest(), SETTLE_MS);
    online.onReturn(() => this.refresh(), signal);
    this.#watch();
  }

  async #watch() {
    const onEvent = ({ event }) => event !== "progress" && event !== "preview" && this.refresh();
    try {
      await follow("v1/events", { signal: this.signal, onEvent });
    } catch (error) {
      // Events after the cursor are no longer available. The jobs are loaded again and followed from now on.
      if (error.status !== 410) return;
      this.refresh();
      this.#watch();
    }
  }

  restart() {
    this.#run += 1;
    this.#cursor = undefined;
    this.#isLoading = this.#isWhole = false;
    this.#tiles.clear();
    fill(this.#grid);
    this.#more();
  }

  search(text) {
    this.#wanted = text.trim().toLowerCase();
    this.#show();
    this.#more();
  }

  async #page(cursor) {
    const query = { ...this.filters, results: true, limit: PAGE, cursor };
    return api.call(api.withQuery("v1/jobs", query), { signal: this.signal });
  }

  async #more() {
    if (this.#isLoading || this.#isWhole || this.signal.aborted) return;
    this.#isLoading = true;
    const run = this.#run;
    fill(this.#end, waiting("Loading"));
    try {
      const page = await this.#page(this.#cursor);
      if (run !== this.#run) return;
      for (const job of page.jobs) this.#put(job);
      fill(this.#end);
      await this.titles.load(page.jobs);
      if (run !== this.#run) return;
      for (const job of page.jobs) this.#put(job);
      this.#cursor = page.next_cursor;
      this.#isWhole = page.next_cursor === undefined;
      this.#isLoading = false;
      this.#show();
      this.#lookAgain();
    } catch (error) {
      if (this.signal.aborted || run !== this.#run) return;
      this.#isLoading = false;
      fill(this.#end, problem(error), button("Try again", { onclick: () => this.#more() }));
    }
  }

  /** Observes the end of the list again, because an observer reports a visible element only once. */
  #lookAgain() {
    this.observer.unobserve(this.#end);
    this.observer.observe(this.#end);
  }

  /** Loads the newest jobs, to show new jobs and new states. */
  async #newest() {
    const run = this.#run;
    try {
      const { jobs } = await this.#page();
      await this.titles.load(jobs);
      if (run !== this.#run) return;
      for (const job of jobs.toReversed()) this.#put(job, { isFirst: !this.#tiles.has(job.request_id) });
      this.#show();
    } catch {
      // The jobs are loaded again at the next event, or when the service answers again.
    }
  }

  #put(job, { isFirst = false } = {}) {
    const there = this.#tiles.get(job.request_id);
    const title = this.titles.of(job);
    const state = JSON.stringify([job.state, title, job.results.map((each) => each.url)]);
    if (there?.state === state) return;
    const element = tile(job, title);
    if (there) there.element.replaceWith(element);
    else if (isFirst) this.#grid.prepend(element);
    else this.#grid.append(element);
    this.#tiles.set(job.request_id, { job, element, state });
  }

  /** Hides the jobs that do not match the search. */
  #show() {
    let count = 0;
    for (const { job, element } of this.#tiles.values()) {
      const text = `${this.titles.of(job)} ${job.request_id} ${job.message ?? ""}`.toLowerCase();
      element.hidden = !text.includes(this.#wanted);
      count += element.hidden ? 0 : 1;
    }
    if (this.#wanted) fill(this.#said, `${count} found`);
    if (this.#isWhole && count === 0) fill(this.#end, this.#nothing());
    else if (this.#isWhole) fill(this.#end);
  }

  #nothing() {
    if (this.#wanted) return empty("Nothing found", "No job has these words in its prompt, id or message.");
    if (Object.values(this.filters).some(Boolean)) return empty("No such jobs", "Take other filters to see more.");
    const make = session.may("generate") && link("Create a picture", "#/create", { class: "button primary" });
    return empty("No pictures yet", "What you make shows here, newest first.", make);
  }
}
