// @stable-canvas/comfyui-client, which has fields for a host and a port: `darkroom forward`.
import assert from "node:assert/strict";
import { Client, Workflow } from "@stable-canvas/comfyui-client";
import { brokenGraph, forwarded, graph, save } from "./shared.mjs";

const client = new Client({ api_host: forwarded, clientId: crypto.randomUUID(), WebSocket, fetch });
await client.getSystemStats();
await client.connect();
const made = await client.enqueue(graph);
assert.equal(made.images.length, 1);
const image = made.images[0];
const content = image.type === "buff" ? image.data : await (await fetch(image.data)).arrayBuffer();
await save("made", content);
await assert.rejects(client.enqueue(brokenGraph()), (error) => {
  assert.equal(error.status, 400);
  assert.match(JSON.stringify(error.json.node_errors["4"]), /missing\.safetensors/);
  return true;
});
assert.ok((await client.getSDModels()).includes(graph["4"].inputs.ckpt_name));
assert.ok((await client.getSamplers()).includes("euler"));
assert.ok(Array.isArray(await client.getEmbeddings()));
client.close();
