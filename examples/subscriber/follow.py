"""Prints the events of all jobs, one per line: first the stored events, then each new event.

    python examples/subscriber/follow.py data/nats/reader.url offset

The program stores its offset in the file `offset` and continues there the next time. It needs only
`nats-py`.
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

POLL_S = 5.0
"""A notification may be lost, so the program also reads the log in this interval."""


async def main(url: str, offset: Path) -> None:
    news = asyncio.Event()

    async def note(_message: object) -> None:
        news.set()

    client = await nats.connect(url, max_reconnect_attempts=-1)
    await client.subscribe("events.>", cb=note)
    while True:
        news.clear()
        async for sequence, event in stored(client.jetstream(), after=read(offset)):
            handle(event)
            write(offset, sequence)  # last, so that a crash repeats the event and does not lose it
        with suppress(TimeoutError):
            await asyncio.wait_for(news.wait(), POLL_S)


async def stored(log: JetStreamContext, *, after: int) -> AsyncIterator[tuple[int, dict]]:
    """Yield the stored events after an offset, each with its own offset."""
    while True:
        try:
            message = await log.get_msg(
                "JOBS", seq=after + 1, next=True, subject="jobs.*.*", direct=True
            )
        except NotFoundError:  # there are no more events
            return
        except (TimeoutError, nats.errors.Error):  # the server is unavailable
            return
        after = message.seq
        yield after, json.loads(message.data)


def handle(event: dict) -> None:
    """Replace this function.

    Ignore events whose `id` was handled before. After `darkroom.job.erased.v1`, delete all stored
    data of the job.
    """
    print(json.dumps(event), flush=True)


def read(offset: Path) -> int:
    return int(offset.read_text()) if offset.exists() else 0


def write(offset: Path, sequence: int) -> None:
    fresh = offset.with_name(f"{offset.name}.new")
    fresh.write_text(str(sequence))
    fresh.replace(offset)


if __name__ == "__main__":
    url, offset = sys.argv[1:]
    asyncio.run(main(Path(url).read_text().strip(), Path(offset)))
