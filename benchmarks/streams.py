"""Event streams beside a load: how soon a stored event reaches its watchers, and what that costs.

So many streams stand open on one HTTP replica, ten of each owner, while jobs without a model run. A
latency is counted twice: from the event's own time, which is before it is on disk, and from the
moment at which the log, which is asked here too, gives it away; that is when it is stored. The load
generator reads all of it on the same cores, so the figures are upper bounds. At the end all streams
are closed at once, and the replica's open files are counted again.

usage: python -m benchmarks.streams [--streams 1000] [--rate 20] [--time-s 60] [--json FILE]
                                    [SETTING=VALUE ...]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js.api import DeliverPolicy

from benchmarks.harness.arrivals import uniform
from benchmarks.harness.http import Connections, WrongAnswer, request
from benchmarks.harness.installation import Installation, installation
from benchmarks.harness.latencies import percentile
from benchmarks.harness.machine import used
from benchmarks.harness.report import Report

STREAMS_OF_OWNER = 10
REPLICA = "HTTP replicas"
REST_S = 5.0
LAST_EVENTS_S = 30.0
"""How long after the load its last events may take."""
GONE_S = 30.0
SETTINGS = {
    "DARKROOM_HTTP_REPLICAS": "1",
    "DARKROOM_MAX_STREAMS": "4000",
    "DARKROOM_MAX_CONNECTIONS_PER_ADDRESS": "0",
    "DARKROOM_OWNER_MAX_STREAMS": "0",
}
BODY = {
    "prompt": {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0},
        },
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "b"}},
    }
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streams")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--time-s", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    report = Report("streams")
    settings = dict(each.split("=", 1) for each in args.settings)
    with installation({**SETTINGS, **settings}) as installed:
        bench = Bench(installed, streams=args.streams, rate_per_s=args.rate, time_s=args.time_s)
        asyncio.run(bench.run(report))
    report.write(args.json)


@dataclass
class Watcher:
    """Reads one stream, and notes each stored event."""

    port: int
    key: str
    began: asyncio.Event = field(default_factory=asyncio.Event)
    arrivals: list[tuple[str, float]] = field(default_factory=list)
    """The id of each event, and when it was here, in seconds as of `time.monotonic()`."""
    delays_s: list[float] = field(default_factory=list)
    """From each event's own time."""
    ids: list[int] = field(default_factory=list)
    ended_jobs: int = 0

    async def run(self) -> None:
        """Until cancelled. Raises WrongAnswer where it is refused, or cut off."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request("GET", "/v1/events", key=self.key))
            if not (status := await reader.readline()).startswith(b"HTTP/1.1 200 "):
                raise WrongAnswer(status.decode())
            while line := await reader.readline():
                self._note(line)
            raise WrongAnswer("the stream was cut off")
        finally:
            writer.close()

    def _note(self, line: bytes) -> None:
        if line.startswith(b"retry:"):
            self.ids.clear()  # of where it begins
            self.began.set()
        elif line.startswith(b"id: "):
            self.ids.append(int(line[4:]))
        elif line.startswith(b"data: ") and b'"specversion"' in line:
            event: dict[str, Any] = json.loads(line[6:])
            delay = datetime.now(UTC) - datetime.fromisoformat(event["time"])
            self.delays_s.append(delay.total_seconds())
            self.arrivals.append((event["id"], time.monotonic()))
            self.ended_jobs += event["type"] == "darkroom.job.completed.v1"


class Bench:
    def __init__(
        self, installed: Installation, *, streams: int, rate_per_s: float, time_s: float
    ) -> None:
        self._installed = installed
        self._port = installed.service.port
        self._streams = streams
        self._rate_per_s = rate_per_s
        self._time_s = time_s
        self._connections = Connections(self._port)

    async def run(self, report: Report) -> None:
        keys = [await self._key(n) for n in range(-(-self._streams // STREAMS_OF_OWNER))]
        self._installed.settle()
        rows = [await self._under_load(keys, count) for count in (0, self._streams)]
        report.table(
            f"{self._rate_per_s:g} jobs/s for {self._time_s:g} s: from an event's time, and from "
            "when it is stored, to its watchers, ms; CPU of the replica, cores; its files "
            "afterwards, beside those before",
            {
                "streams": "",
                "jobs/s": ".1f",
                "events": ".0f",
                "p50": ".0f",
                "p99": ".0f",
                "longest": ".0f",
                "stored p50": ".0f",
                "stored p99": ".0f",
                "lost or twice": ".0f",
                "cores": ".2f",
                "files left": ".0f",
            },
            rows,
        )

    async def _under_load(self, keys: list[str], count: int) -> list[float | str]:
        family = self._installed.family
        files = family.files().get(REPLICA, 0)
        watchers = [Watcher(self._port, keys[n // STREAMS_OF_OWNER]) for n in range(count)]
        tasks = [asyncio.create_task(each.run()) for each in watchers]
        await asyncio.gather(*(each.began.wait() for each in watchers))
        before, began = family.cpu_s(), time.monotonic()
        async with _stored_at(self._installed.nats_url) as stored:
            jobs = await self._load(keys)
            cpu_s, took_s = used(before, family.cpu_s()), time.monotonic() - began
            await self._last_events(watchers, jobs)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if not isinstance(end, asyncio.CancelledError):
                raise end or WrongAnswer("a stream ended")
        delays = [1000 * each for watcher in watchers for each in watcher.delays_s]
        since_stored = [
            1000 * max(0.0, at - stored[event_id])
            for watcher in watchers
            for event_id, at in watcher.arrivals
            if event_id in stored
        ]
        return [
            str(count),
            jobs / took_s,
            float(len(delays)),
            percentile(delays, 50),
            percentile(delays, 99),
            max(delays, default=float("nan")),
            percentile(since_stored, 50),
            percentile(since_stored, 99),
            float(self._differing(watchers)),
            cpu_s.get(REPLICA, 0.0) / took_s,
            float(await self._files_left(files)),
        ]

    async def _load(self, keys: list[str]) -> int:
        """Jobs of all owners in turn; how many were accepted."""
        began = time.monotonic()
        calls = []
        for number, at_s in enumerate(uniform(self._rate_per_s, self._time_s)):
            await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
            message = request(
                "POST", "/workflow/v1/generate", key=keys[number % len(keys)], body=BODY
            )
            calls.append(asyncio.create_task(self._connections.call(message)))
        answers = await asyncio.gather(*calls)
        return sum(answer.status == 202 for answer in answers)

    async def _last_events(self, watchers: list[Watcher], jobs: int) -> None:
        """Until the end of so many jobs was seen, or for as long as that may take."""
        give_up_at = time.monotonic() + LAST_EVENTS_S
        while watchers and time.monotonic() < give_up_at:
            if self._ended(watchers) >= jobs:
                break
            await asyncio.sleep(0.1)

    def _ended(self, watchers: list[Watcher]) -> int:
        """Jobs that the first watcher of each owner saw the end of."""
        return sum(each.ended_jobs for each in watchers[::STREAMS_OF_OWNER])

    def _differing(self, watchers: list[Watcher]) -> int:
        """Streams that did not have what the first of the same owner had, each event once."""
        firsts = watchers[::STREAMS_OF_OWNER]
        return sum(
            each.ids != firsts[place // STREAMS_OF_OWNER].ids or len(set(each.ids)) < len(each.ids)
            for place, each in enumerate(watchers)
        )

    async def _files_left(self, before: int) -> int:
        """How many more files the replica has than before, once that grows no smaller."""
        give_up_at = time.monotonic() + GONE_S
        while (left := self._installed.family.files().get(REPLICA, 0) - before) > 0:
            if time.monotonic() > give_up_at:
                break
            await asyncio.sleep(REST_S / 10)
        return max(left, 0)

    async def _key(self, number: int) -> str:
        message = request(
            "POST",
            "/v1/keys",
            key=self._installed.service.admin_key,
            body={"owner": f"watcher-{number}"},
        )
        answer = await self._connections.call(message)
        if answer.status != 201:
            raise WrongAnswer(answer.body.decode())
        return str(answer.json()["key"])


@asynccontextmanager
async def _stored_at(url: str) -> AsyncIterator[dict[str, float]]:
    """When the log gave each event away, by its id: it does so once the event is on disk."""
    times: dict[str, float] = {}

    async def note(message: Msg) -> None:
        times[json.loads(message.data)["id"]] = time.monotonic()

    client = await nats.connect(url)
    try:
        js = client.jetstream()
        await js.subscribe(
            "jobs.>", cb=note, ordered_consumer=True, deliver_policy=DeliverPolicy.NEW
        )
        yield times
    finally:
        await client.close()


if __name__ == "__main__":
    main()
