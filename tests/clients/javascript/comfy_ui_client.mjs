// comfy-ui-client, as its README uses it. It has no field for a key.
import assert from "node:assert/strict";
import { ComfyUIClient } from "comfy-ui-client";
import { brokenGraph, graph, host, inverted, key, save } from "./shared.mjs";

const client = new ComfyUIClient(`${host}/key/${key}`, crypto.randomUUID());
await client.connect();
const images = await client.getImages(graph);
const made = await save("made", images["9"][0].blob);
const uploaded = await client.uploadImage(made, "made.png", true);
const loaded = await client.getImages(inverted(uploaded.name));
await save("inverted", loaded["3"][0].blob);
await assert.rejects(client.getImages(brokenGraph()), /missing\.safetensors/);
assert.deepEqual(await client.getQueue(), { queue_running: [], queue_pending: [] });
assert.ok((await client.getSystemStats()).devices.length);
assert.ok((await client.getObjectInfo("KSampler")).KSampler);
assert.ok(Array.isArray(await client.getEmbeddings()));
assert.ok(Array.isArray(await client.getExtensions()));
assert.equal((await client.getPrompt()).exec_info.queue_remaining, 0);
assert.ok(Object.keys(await client.getHistory()).length);
await client.disconnect();
