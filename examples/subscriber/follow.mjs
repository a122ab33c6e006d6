// Prints the events of all jobs, one a line: those that are stored, then each as it happens.
//
//     npm ci --prefix examples/subscriber
//     node examples/subscriber/follow.mjs data/nats/reader.url place [streams]
//
// `place` is the file in which it keeps how far it has come: it goes on from there the next time.
// `streams` is DARKROOM_LOG_STREAMS of the service, where that is not 1; a place is one in so many
// streams.

import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { connect } from "@nats-io/transport-node";

const LOOKS_EVERY_MS = 5000; // news may be lost on the way, so it looks without any, too

const [urlFile, place, count = "1"] = process.argv.slice(2);
const streams = count === "1" ? ["JOBS"] : Array.from({ length: Number(count) }, (_, i) => `JOBS_${i}`);

async function main() {
  const { host, username: user, password: pass } = new URL(readFileSync(urlFile, "utf8").trim());
  const client = await connect({ servers: host, user, pass, maxReconnectAttempts: -1 });
  const news = newsOf(client);
  while (true) {
    news.clear();
    const places = read();
    for (const [index, stream] of streams.entries()) {
      for await (const [sequence, event] of stored(client, stream, places[index])) {
        handle(event);
        places[index] = sequence;
        write(places); // last: after a crash the event comes again, and is not lost
      }
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
        const timer = setTimeout(resolve, LOOKS_EVERY_MS);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
        if (isNew) wake();
      }),
  };
}

// The events behind a place, each with its own, as far as they can be had now.
async function* stored(client, stream, after) {
  while (true) {
    const question = JSON.stringify({ seq: after + 1, next_by_subj: "jobs.*.*" });
    let message;
    try {
      message = await client.request(`$JS.API.DIRECT.GET.${stream}`, question, { timeout: 5000 });
    } catch {
      return; // the server is away
    }
    const sequence = message.headers?.get("Nats-Sequence");
    if (!sequence) return; // that was the last one
    after = Number(sequence);
    yield [after, message.json()];
  }
}

// Drop repeats by `id`. At `darkroom.job.erased.v1` delete what you keep of the job.
function handle(event) {
  console.log(JSON.stringify(event));
}

// One place in each stream. Ends the program where they are those of another number of streams.
function read() {
  if (!existsSync(place)) return streams.map(() => 0);
  const places = readFileSync(place, "utf8").trim().split(/\s+/).map(Number);
  if (places.length !== streams.length) {
    const what = `${place} is a place in ${places.length} streams, not in ${streams.length}`;
    console.error(`${what}: give the number that DARKROOM_LOG_STREAMS is, or begin with a new file.`);
    process.exit(1);
  }
  return places;
}

function write(places) {
  writeFileSync(`${place}.new`, places.join(" "));
  renameSync(`${place}.new`, place);
}

await main();
