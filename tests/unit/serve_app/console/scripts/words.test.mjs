import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser } from "../../../../../serve_app/console/static/pure/sse.js";
import { ago, bytes, eventText, plural, seconds, since } from "../../../../../serve_app/console/static/pure/words.js";

test("events are read wherever the text is cut", () => {
  const text = 'retry: 1000\n\nevent: started\ndata: {"a":\ndata: 1}\nid: 7\n\n: keep-alive\n\nevent: progress\r\ndata: 2\r\n\r\n';
  const expected = [{ event: "started", data: '{"a":\n1}', id: "7" }, { event: "progress", data: "2", id: "7" }];
  for (let size = 1; size < text.length; size += 1) {
    const parser = new EventParser();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...parser.feed(text.slice(at, at + size)));
    assert.deepEqual(found, expected);
  }
});

test("sizes and times are told in few signs", () => {
  assert.deepEqual([0, 512, 2048, 5 * 1024 ** 3].map(bytes), ["0 B", "512 B", "2.0 KiB", "5.0 GiB"]);
  assert.deepEqual([0.02, 3.21, 42, 75, 3900].map(seconds), ["20 ms", "3.2 s", "42 s", "1 min 15 s", "1 h 5 min"]);
  assert.equal(ago(new Date(0), 61_000), "1 minute ago");
  assert.equal(plural(2, "picture"), "2 pictures");
  assert.equal(since("2026-01-01T00:00:02Z", "2026-01-01T00:00:00Z"), "+2.0 s");
});

test("an event that is not known has its name", () => {
  assert.equal(eventText("put_aside", {}), "put aside");
  assert.equal(eventText("image_stored", { index: 0 }), "Picture 1 is done");
  assert.equal(eventText("image_stored", { index: 1, media_type: "video/mp4" }), "Video 2 is done");
});
