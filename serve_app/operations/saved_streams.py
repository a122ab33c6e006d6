"""The streams that nothing else can give back, in files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

from events.bus.bus import Bus
from events.bus.logs.dealing import closed, deal_out
from events.bus.snapshot import restore, snapshot
from events.bus.streams import DELIVERIES, JOBS, is_log_stream, log_stream_names
from events.streams.log_streams import LogStreams

_PART_BYTES = 128 * 1024


def saved(streams: LogStreams) -> tuple[str, ...]:
    """In this order: an end whose delivery is not there is called back once more. The other way
    round, a delivery would be there whose job has not ended.
    """
    return (DELIVERIES, *log_stream_names(streams))


def streams_in(folder: Path) -> int:
    """How many streams the saved log is."""
    return sum(is_log_stream(path.stem) for path in folder.glob("*.json"))


async def save_streams(bus: Bus, folder: Path) -> None:
    """Write them to the folder. Raises LogUnavailable, OSError."""
    for stream in saved(bus.log_streams):
        async with snapshot(bus, stream) as (description, parts):
            with await asyncio.to_thread(_snapshot_file(folder, stream).open, "wb") as file:
                async for part in parts:
                    await asyncio.to_thread(file.write, part)
        text = json.dumps(description)
        await asyncio.to_thread(_description_file(folder, stream).write_text, text)


async def load_streams(bus: Bus, folder: Path) -> None:
    """Make them anew from the folder. A log of one stream may become several.

    Raises LogUnavailable, also where one exists; OSError.
    """
    count = await asyncio.to_thread(streams_in, folder)
    is_dealt = count == 1 < bus.log_streams.count
    for stream in saved(LogStreams(count)):
        text = await asyncio.to_thread(_description_file(folder, stream).read_text)
        description = json.loads(text)
        parts = _parts(_snapshot_file(folder, stream))
        if stream == JOBS and is_dealt:
            config = description["config"]
            await restore(bus, stream, description | {"config": closed(config)}, parts)
            await deal_out(bus, bus.log_streams, config)
        else:
            await restore(bus, stream, description, parts)


async def _parts(path: Path) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while part := await asyncio.to_thread(file.read, _PART_BYTES):
            yield part


def _snapshot_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.snapshot"


def _description_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.json"
