"""Makes many jobs at once: as events in the log, and as rows of the read model.

The jobs are copies of the bytes of one template job, with other ids. To accept and run a million
real jobs would take days.
"""

from __future__ import annotations

import json
from asyncio import create_subprocess_exec
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any

import nats
import sqlalchemy as sa
from nats.aio.client import Client

from events.bus.streams import JOBS, job_subject
from events.cloud_events import decode, encode
from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.read_model import job_row
from events.store.tables import JOBS as ROWS
from events.types import Completed, Event, EventData, Flavour, ImageStored, Started, Submitted
from local.nats_server import nats_server_binary

OWNER = "alice"
_PUBLISHED_TOGETHER = 2000
_ROWS_TOGETHER = 2000
_CONFIG = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}", sync_interval: {sync} }}
"""


@asynccontextmanager
async def nats_server(folder: Path, *, sync: str) -> AsyncGenerator[tuple[int, str]]:
    """Run a nats-server without accounts. Yields its process id and its URL. `sync` is its sync
    interval: `always`, or a duration.
    """
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = folder / "nats.conf"
    config.write_text(_CONFIG.format(port=port, folder=folder / "nats", sync=sync))
    server = await create_subprocess_exec(
        nats_server_binary(), "-c", config, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield server.pid, f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        await server.wait()


class Mould:
    """A template job, either ended or waiting, from which other jobs are copied."""

    def __init__(
        self, last_event_at: datetime, *, is_open: bool = False, owner: str = OWNER
    ) -> None:
        self._id = new_id()
        image = ImageStored(
            index=0,
            attempt=1,
            key=f"{self._id}/1/0.png",
            size_bytes=400_000,
            digest="sha256:" + "ab" * 32,
            width=512,
            height=512,
            seed=7,
        )
        data: list[EventData] = [_submitted(owner)]
        if not is_open:
            data += [Started(attempt=1, actor="a"), image, Completed(images=1)]
        self._payloads = [
            encode(
                Event(
                    id=new_id(),
                    job_id=self._id,
                    version=version,
                    time=last_event_at - timedelta(seconds=len(data) - version),
                    data=each,
                )
            )
            for version, each in enumerate(data, 1)
        ]

    @property
    def events(self) -> int:
        return len(self._payloads)

    def payloads(self, job_id: str) -> list[bytes]:
        mine, theirs = self._id.encode(), job_id.encode()
        return [payload.replace(mine, theirs) for payload in self._payloads]

    def rows(self, job_ids: Sequence[str], *, first_position: int) -> list[dict[str, Any]]:
        """Return the rows of jobs whose events are in the log one job after the other."""
        job = fold(decode(payload, position=1) for payload in self._payloads)
        assert job is not None
        row = job_row(job)
        rows = []
        for number, job_id in enumerate(job_ids, 1):
            position = first_position - 1 + number * self.events
            mine = {
                "id": job_id,
                "position": position,
                "state": _cast(row["state"], self._id, job_id, position),
                "summary": _cast(row["summary"], self._id, job_id, position),
            }
            rows.append(row | mine)
        return rows


def _submitted(owner: str) -> Submitted:
    return Submitted(
        flavour=Flavour.DIFFUSION,
        owner=owner,
        key_id="k1",
        endpoint="default",
        lane=3,
        request={
            "prompt": "a large red circle above a small blue square on a yellow background",
            "negative_prompt": "blurry, dark",
            "width": 512,
            "height": 512,
            "sampler_name": "DPM++ 2M",
            "scheduler": "Karras",
            "steps": 20,
            "cfg_scale": 7,
            "seed": 123456789,
        },
        fingerprint="f" * 64,
        images=1,
    )


def _cast(state: str, mould_id: str, job_id: str, position: int) -> str:
    job = json.loads(state.replace(mould_id, job_id))
    job["job"]["position"] = position
    return json.dumps(job)


async def publish(url: str, mould: Mould, job_ids: Sequence[str]) -> int:
    """Write the events of the jobs to the log. Return the position of the first event."""
    client = await nats.connect(url)
    try:
        js = client.jetstream()
        before = (await js.stream_info(JOBS)).state.last_seq
        for start in range(0, len(job_ids), _PUBLISHED_TOGETHER):
            part = job_ids[start : start + _PUBLISHED_TOGETHER]
            for job_id in part:
                for payload in mould.payloads(job_id):
                    await client.publish(job_subject(job_id), payload)
            await _stored(client, before + (start + len(part)) * mould.events)
        return before + 1
    finally:
        await client.close()


async def log_bytes(url: str) -> int:
    client = await nats.connect(url)
    try:
        return (await client.jetstream().stream_info(JOBS)).state.bytes
    finally:
        await client.close()


async def _stored(client: Client, position: int) -> None:
    """Wait until the log has reached this position, because `publish` does not wait for answers."""
    while (await client.jetstream().stream_info(JOBS)).state.last_seq < position:
        pass


async def put_rows(database: Database, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS_TOGETHER):
        async with database.write() as connection:
            await connection.execute(sa.insert(ROWS), rows[start : start + _ROWS_TOGETHER])
