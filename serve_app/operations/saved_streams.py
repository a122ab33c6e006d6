"""The streams that nothing else can give back, in files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

from events.bus.bus import Bus
from events.bus.snapshot import restore, snapshot
from events.bus.streams import DELIVERIES, JOBS

SAVED = (DELIVERIES, JOBS)
"""In this order: an end whose delivery is not there is called back once more. The other way round,
a delivery would be there whose job has not ended."""
_PART_BYTES = 128 * 1024


async def save_streams(bus: Bus, folder: Path) -> None:
    """Write them to the folder. Raises LogUnavailable, OSError."""
    for stream in SAVED:
        async with snapshot(bus, stream) as (description, parts):
            with await asyncio.to_thread(_snapshot_file(folder, stream).open, "wb") as file:
                async for part in parts:
                    await asyncio.to_thread(file.write, part)
        text = json.dumps(description)
        await asyncio.to_thread(_description_file(folder, stream).write_text, text)


async def load_streams(bus: Bus, folder: Path) -> None:
    """Make them anew from the folder. Raises LogUnavailable, also where one exists; OSError."""
    for stream in SAVED:
        text = await asyncio.to_thread(_description_file(folder, stream).read_text)
        await restore(bus, stream, json.loads(text), _parts(_snapshot_file(folder, stream)))


async def _parts(path: Path) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while part := await asyncio.to_thread(file.read, _PART_BYTES):
            yield part


def _snapshot_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.snapshot"


def _description_file(folder: Path, stream: str) -> Path:
    return folder / f"{stream}.json"
