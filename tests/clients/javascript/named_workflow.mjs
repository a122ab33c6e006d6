// A named workflow by the TypeScript library of the Model Context Protocol, and as a model of
// OpenAI's own library.
import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import OpenAI from "openai";
import { address, addressWithKey, graph, key, prompt, save } from "./shared.mjs";

const headers = { Authorization: `Bearer ${key}`, "Content-Type": "application/json" };
const definition = { name: "circle", prompt: graph, description: "A circle" };
const stored = await fetch(`${address}/v1/workflows`, { method: "POST", headers, body: JSON.stringify(definition) });
assert.equal(stored.status, 201, await stored.text());

const agent = new Client({ name: "a-test", version: "1.0.0" });
await agent.connect(new StreamableHTTPClientTransport(new URL(`${addressWithKey}/mcp`)));
const { tools } = await agent.listTools();
const tool = tools.find((each) => each.name === "run_circle");
assert.equal(tool.description, "A circle");
assert.ok("seed" in tool.inputSchema.properties);
const made = await agent.callTool({ name: "run_circle", arguments: { seed: 5 } }, undefined, {
  onprogress: (told) => assert.ok(told.progress <= 1),
});
assert.ok(!made.isError, JSON.stringify(made.content));
const image = made.content.find((each) => each.type === "image");
await save("by-agent", Buffer.from(image.data, "base64"));
const wrong = await agent.callTool({ name: "run_circle", arguments: { seed: "five" } });
assert.match(wrong.content[0].text, /inputs\.seed/);
const submitted = await agent.callTool({
  name: "submit_job",
  arguments: { flavour: "workflow", body: { prompt: graph } },
});
const { request_id } = submitted.structuredContent;
const ended = await agent.callTool({ name: "wait_for_job", arguments: { request_id } });
assert.equal(ended.structuredContent.status, 1);
const resource = await agent.readResource({ uri: `darkroom://jobs/${request_id}` });
assert.equal(JSON.parse(resource.contents[0].text).request_id, request_id);
await agent.close();

const client = new OpenAI({ apiKey: key, baseURL: `${address}/v1` });
const drawn = await client.images.generate({ model: "circle", prompt, seed: 5 });
await save("by-openai", Buffer.from(drawn.data[0].b64_json, "base64"));
