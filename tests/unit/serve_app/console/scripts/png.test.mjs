import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateSync } from "node:zlib";

import { isPng, texts } from "../../../../../serve_app/console/static/pure/png.js";

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

function chunk(type, data) {
  const length = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  return Buffer.concat([length, Buffer.from(type), data, Buffer.alloc(4)]);
}

const png = (...chunks) => new Uint8Array(Buffer.concat([SIGNATURE, ...chunks, chunk("IEND", Buffer.alloc(0))]));
const latin = (text) => Buffer.from(text, "latin1");

test("each kind of text is read", async () => {
  const international = (flag, text) => Buffer.concat([latin("title\0"), Buffer.from([flag, 0]), latin("en\0\0"), text]);
  const file = png(
    chunk("IHDR", Buffer.alloc(13)),
    chunk("tEXt", latin('prompt\0{"é": 1}')),
    chunk("zTXt", Buffer.concat([latin("workflow\0\0"), deflateSync(latin("deep"))])),
    chunk("iTXt", international(0, Buffer.from("Ω"))),
  );
  assert.deepEqual(await texts(file), { prompt: '{"é": 1}', workflow: "deep", title: "Ω" });
  const packed = png(chunk("iTXt", international(1, deflateSync(Buffer.from("Ω")))));
  assert.deepEqual(await texts(packed), { title: "Ω" });
});

test("what is damaged or cut off says nothing, and the rest is read", async () => {
  const file = png(chunk("zTXt", latin("bad\0\0nothing packed")), chunk("tEXt", latin("no end")), chunk("tEXt", latin("good\0yes")));
  assert.deepEqual(await texts(file), { good: "yes" });
  assert.deepEqual(await texts(file.subarray(0, 30)), {});
  assert.deepEqual(await texts(new Uint8Array([1, 2, 3])), {});
  assert.equal(isPng(file), true);
});

test("a small chunk that unpacks to very much is passed over", async () => {
  const bomb = deflateSync(Buffer.alloc(64 * 1024 * 1024));
  assert.deepEqual(await texts(png(chunk("zTXt", Buffer.concat([latin("bomb\0\0"), bomb])))), {});
});
