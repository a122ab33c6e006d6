import assert from "node:assert/strict";
import { test } from "node:test";

import { kindOf, nameOf, thumbnailUrl } from "../../../../../serve_app/console/static/pure/media.js";

test("a result has the kind that this page can show", () => {
  const kinds = {
    "image/png": "image",
    "image/jpeg": "image",
    "image/gif": "image",
    "image/tiff": "file",
    "image/svg+xml": "file",
    "video/mp4": "video",
    "audio/flac": "audio",
    "text/plain": "text",
    "model/gltf-binary": "model",
    "application/x-safetensors": "file",
    "constructor/x": "file",
  };
  for (const [type, kind] of Object.entries(kinds)) assert.equal(kindOf({ media_type: type }), kind, type);
  assert.equal(kindOf({ url: "/files/1/0.png" }), "image");
  assert.equal(nameOf({ index: 0, media_type: "audio/wav" }), "Sound 1");
});

test("a video is shown by its poster, and a picture by itself", () => {
  assert.equal(thumbnailUrl({ url: "0.png", media_type: "image/png" }), "0.png");
  assert.equal(thumbnailUrl({ url: "0.mp4", media_type: "video/mp4", poster_url: "0-poster.jpg" }), "0-poster.jpg");
  for (const type of ["video/mp4", "text/plain", "application/x-safetensors"]) assert.equal(thumbnailUrl({ url: "0.x", media_type: type }), "");
});
