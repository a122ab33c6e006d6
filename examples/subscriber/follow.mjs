// Prints the events of all jobs, one per line: first the stored events, then each new event.
//
//     npm ci --prefix examples/subscriber
//     node examples/subscriber/follow.mjs data/nats/reader.url offset
//
// The program stores its offset in the file `offset` and continues there the next time.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect } from "@nats-io/transport-node";

const POLL_MS = 5000; // a notification may be lost, so the program also reads the log in this interval

const [urlFile, offset] = process.argv.slice(2);

async function main() {
  const { host, username: user, password: pass } = new URL(readFileSync(urlFile, "utf8").trim());
  const client = await connect({ servers: host, user, pass, maxReconnectAttempts: -1 });
  const news = newsOf(client);
  while (true) {
    news.clear();
    for await (const [sequence, event] of stored(client, read())) {
      handle(event);
      write(sequence); // last, so that a crash repeats the event and does not lose it
    }
    await news.wait();
  }
}

function newsOf(client) {
  let isNew = false;
  let wake = () => {};
  client.subscribe("events.>", {
    callback: () => {
      isNew = true;
      wake();
    },
  });
  return {
    clear: () => {
      isNew = false;
    },
    wait: () =>
      new Promise((resolve) => {
        const timer = setTimeout(resolve, POLL_MS);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
        if (isNew) wake();
      }),
  };
}

// Yield the stored events after an offset, each with its own offset.
async function* stored(client, after) {
  while (true) {
    const question = JSON.stringify({ seq: after + 1, next_by_subj: "jobs.*.*" });
    let message;
    try {
      message = await client.request("$JS.API.DIRECT.GET.JOBS", question, { timeout: 5000 });
    } catch {
      return; // the server is unavailable
    }
    const sequence = message.headers?.get("Nats-Sequence");
    if (!sequence) return; // there are no more events
    after = Number(sequence);
    yield [after, message.json()];
  }
}

// Replace this function. Ignore events whose `id` was handled before. After `darkroom.job.erased.v1`, delete all
// stored data of the job.
function handle(event) {
  console.log(JSON.stringify(event));
}

function read() {
  return existsSync(offset) ? Number(readFileSync(offset, "utf8")) : 0;
}

function write(sequence) {
  writeFileSync(`${offset}.new`, String(sequence));
  renameSync(`${offset}.new`, offset);
}

await main();
