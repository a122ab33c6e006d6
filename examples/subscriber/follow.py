"""Prints the events of all jobs, one a line: those that are stored, then each as it happens.

    python examples/subscriber/follow.py data/nats/reader.url place [streams]

`place` is the file in which it keeps how far it has come: it goes on from there the next time.
`streams` is DARKROOM_LOG_STREAMS of the service, where that is not 1; a place is one in so many
streams. It needs `nats-py` alone.
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
REMEDY = "give the number that DARKROOM_LOG_STREAMS is, or begin with a new file"


async def main(url: str, place: Path, streams: list[str]) -> None:
    news = asyncio.Event()

    async def note(_message: object) -> None:
        news.set()

    client = await nats.connect(url, max_reconnect_attempts=-1)
    await client.subscribe("events.>", cb=note)
    while True:
        news.clear()
        places = read(place, len(streams))
        for index, stream in enumerate(streams):
            async for sequence, event in stored(client.jetstream(), stream, after=places[index]):
                handle(event)
                places[index] = sequence
                write(place, places)  # last: after a crash the event comes again, and is not lost
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), LOOKS_EVERY_S)


async def stored(
    log: JetStreamContext, stream: str, *, after: int
) -> AsyncIterator[tuple[int, dict]]:
    """The events behind a place, each with its own, as far as they can be had now."""
    while True:
        try:
            message = await log.get_msg(
                stream, seq=after + 1, next=True, subject="jobs.*.*", direct=True
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


def read(place: Path, streams: int) -> list[int]:
    """One in each stream. Ends the program where they are those of another number of streams."""
    if not place.exists():
        return [0] * streams
    places = [int(each) for each in place.read_text().split()]
    if len(places) != streams:
        sys.exit(f"{place} is a place in {len(places)} streams, not in {streams}: {REMEDY}.")
    return places


def write(place: Path, places: list[int]) -> None:
    fresh = place.with_name(f"{place.name}.new")
    fresh.write_text(" ".join(map(str, places)))
    fresh.replace(place)


def names(count: int) -> list[str]:
    return ["JOBS"] if count == 1 else [f"JOBS_{index}" for index in range(count)]


if __name__ == "__main__":
    url, place, *count = sys.argv[1:]
    asyncio.run(
        main(Path(url).read_text().strip(), Path(place), names(int(count[0]) if count else 1))
    )
