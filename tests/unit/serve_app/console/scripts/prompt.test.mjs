import assert from "node:assert/strict";
import { test } from "node:test";

import { loras, pieces, summary } from "../../../../../serve_app/console/static/pure/prompt.js";

const kinds = (text) => pieces(text).map((piece) => `${piece.kind} ${piece.text}`);

test("the pieces of any text are that text", () => {
  const signs = ["(", ")", "[", "]", ":", "|", "\\", "<lora:a>", "<", "AND", " ", "1.5", "é", "\n"];
  let seed = 7;
  for (let round = 0; round < 2000; round += 1) {
    let text = "";
    for (let length = 0; length < 12; length += 1) {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      text += signs[seed % signs.length];
    }
    assert.equal(pieces(text).map((piece) => piece.text).join(""), text);
  }
});

test("weights, edits and turns have their parts", () => {
  assert.deepEqual(kinds("(a:1.2)"), ["bracket (", "text a", "number :1.2", "bracket )"]);
  assert.deepEqual(kinds("[a:b:10]"), ["bracket [", "text a", "colon :", "text b", "number :10", "bracket ]"]);
  assert.deepEqual(kinds("[a|b]"), ["bracket [", "text a", "bar |", "text b", "bracket ]"]);
});

test("a bracket without a partner, and what is written behind a backslash, stand for themselves", () => {
  assert.deepEqual(kinds("a)"), ["text a", "stray )"]);
  assert.deepEqual(kinds("(a]"), ["stray (", "text a", "stray ]"]);
  assert.deepEqual(kinds("\\(a\\)"), ["escape \\(", "text a", "escape \\)"]);
});

test("a colon or a bar outside of brackets is a text", () => {
  assert.deepEqual(kinds("a:b|c"), ["text a", "text :", "text b", "text |", "text c"]);
});

test("depth counts the brackets around", () => {
  assert.deepEqual(pieces("((a))").map((piece) => piece.depth), [0, 1, 2, 1, 0]);
});

test("LoRAs are told by their names", () => {
  assert.deepEqual(loras("x <lora:ink:0.8> <lora: deep/blue >"), ["ink", "deep/blue"]);
});

test("the summary counts what a prompt does", () => {
  assert.deepEqual(summary("(a:1.2) AND b"), ["1 × weight", "1 × AND"]);
  assert.deepEqual(summary("a cat"), []);
});

test("a long prompt of brackets takes no long time", () => {
  const text = "(".repeat(16000) + ")".repeat(16000);
  assert.equal(pieces(text).at(-1).depth, 0);
});
