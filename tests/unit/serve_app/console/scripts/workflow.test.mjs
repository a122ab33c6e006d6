import assert from "node:assert/strict";
import { test } from "node:test";

import { layout } from "../../../../../serve_app/console/static/pure/layout.js";
import { NoWorkflow, nodesOf, parse, typed, withInput } from "../../../../../serve_app/console/static/pure/workflow.js";

const GRAPH = {
  1: { class_type: "Loader", inputs: { name: "a" }, _meta: { title: "The model" } },
  2: { class_type: "Encode", inputs: { clip: ["1", 1], text: "cat" } },
  3: { class_type: "Sampler", inputs: { model: ["1", 0], positive: ["2", 0], steps: 20 } },
};

test("a bare graph, one under prompt, and an editor's file are told apart", () => {
  assert.deepEqual(parse(JSON.stringify(GRAPH)).body, { prompt: GRAPH });
  const whole = { prompt: GRAPH, extra_data: {} };
  assert.deepEqual(parse(JSON.stringify(whole)), { body: whole, graph: GRAPH });
  assert.equal(parse('{"nodes": [], "links": []}').graph, null);
});

test("what is no workflow is refused in words", () => {
  for (const text of ["", "[1]", "{}", '{"1": 2}', '{"prompt": {"1": {"inputs": {}}}}', "null"]) {
    assert.throws(() => parse(text), NoWorkflow);
  }
});

test("nodes have values and links", () => {
  const [loader, encode] = nodesOf(GRAPH);
  assert.equal(loader.title, "The model");
  assert.deepEqual(encode.values, [["text", "cat"]]);
  assert.deepEqual(encode.links, [{ input: "clip", from: "1", output: 1 }]);
  assert.deepEqual(nodesOf({ 1: { class_type: "X", inputs: { size: ["9", 0], pair: [8, 2] } } })[0].links, []);
});

test("a node stands behind all that it takes, and none on another", () => {
  const { boxes, edges } = layout(nodesOf(GRAPH));
  assert.ok(boxes.get("1").x < boxes.get("2").x && boxes.get("2").x < boxes.get("3").x);
  assert.equal(edges.length, 3);
  const all = [...boxes.values()];
  for (const one of all) {
    for (const other of all.filter((each) => each !== one && each.x === one.x)) {
      assert.ok(one.y + one.height <= other.y || other.y + other.height <= one.y);
    }
  }
});

test("a circle and a very deep graph are laid out, too", () => {
  const circle = { 1: { class_type: "A", inputs: { x: ["2", 0] } }, 2: { class_type: "B", inputs: { x: ["1", 0] } } };
  assert.equal(layout(nodesOf(circle)).boxes.size, 2);
  assert.equal(layout(nodesOf({ 1: { class_type: "A", inputs: { x: ["1", 0] } } })).boxes.size, 1);
  const deep = {};
  for (let id = 0; id < 20000; id += 1) deep[id] = { class_type: "A", inputs: id ? { x: [String(id - 1), 0] } : {} };
  assert.equal(layout(nodesOf(deep)).boxes.size, 20000);
  assert.deepEqual(layout([]).edges, []);
});

test("a changed value keeps its type", () => {
  assert.equal(withInput(GRAPH, "3", "steps", 30)["3"].inputs.steps, 30);
  assert.equal(GRAPH["3"].inputs.steps, 20);
  assert.equal(typed("30", 20), 30);
  assert.equal(typed("many", 20), undefined);
  assert.equal(typed("30", "text"), "30");
  assert.equal(typed("false", true), false);
});
