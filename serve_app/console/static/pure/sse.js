// Parses Server-Sent Events from text that arrives in parts.
// https://html.spec.whatwg.org/multipage/server-sent-events.html

export class EventParser {
  #rest = "";
  #event = "";
  #data = [];
  #id = "";
  /** The id of the last complete block, also of a block without data. */
  lastId = "";

  /** Adds `text`, and returns the events that are complete now: [{event, data, id}]. */
  feed(text) {
    this.#rest += text;
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/);
    this.#rest = lines.pop();
    return lines.map((line) => this.#line(line)).filter((each) => each !== null);
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.#event = value;
    else if (name === "data") this.#data.push(value);
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch() {
    const [event, data] = [this.#event || "message", this.#data];
    this.#event = "";
    this.#data = [];
    this.lastId = this.#id;
    return data.length ? { event, data: data.join("\n"), id: this.lastId } : null;
  }
}
