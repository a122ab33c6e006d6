"""Prints the events of all jobs, one a line: those that are stored, then each as it happens.

    python examples/subscriber/follow.py data/nats/reader.url place

`place` is the file in which it keeps how far it has come: it goes on from there the next time.
It needs `nats-py` alone.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import nats
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

LOOKS_EVERY_S = 5.0
"""News may be lost on the way, so it looks without any, too."""


async def main(url: str, place: Path) -> None:
    news = asyncio.Event()

    async def note(_message: object) -> None:
        news.set()

    client = await nats.connect(url, max_reconnect_attempts=-1)
    await client.subscribe("events.>", cb=note)
    while True:
        news.clear()
        async for sequence, event in stored(client.jetstream(), after=read(place)):
            handle(event)
            write(place, sequence)  # last: after a crash the event comes again, and is not lost
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), LOOKS_EVERY_S)


async def stored(log: JetStreamContext, *, after: int) -> AsyncIterator[tuple[int, dict]]:
    """The events behind a place, each with its own, as far as they can be had now."""
    while True:
        try:
            message = await log.get_msg(
                "JOBS", seq=after + 1, next=True, subject="jobs.*.*", direct=True
            )
        except NotFoundError:  # that was the last one
            return
        except (TimeoutError, nats.errors.Error):  # the server is away
            return
        after = message.seq
        yield after, json.loads(message.data)


def handle(event: dict) -> None:
    """Drop repeats by `id`. At `darkroom.job.erased.v1` delete what you keep of the job."""
    print(json.dumps(event), flush=True)


def read(place: Path) -> int:
    return int(place.read_text()) if place.exists() else 0


def write(place: Path, sequence: int) -> None:
    fresh = place.with_name(f"{place.name}.new")
    fresh.write_text(str(sequence))
    fresh.replace(place)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]).read_text().strip(), Path(sys.argv[2])))
