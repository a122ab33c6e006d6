"""The steps of a change from one stream to several, as a process that dies leaves them."""

from __future__ import annotations

import asyncio
from typing import Any

from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig

from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.bus.logs.log_setup import CLOSED_SUBJECT
from events.bus.streams import JOBS, job_subject
from events.ids import new_id
from events.log import Appended, utc_now
from events.streams.log_streams import LogStreams
from events.types import Event
from events.wire.cloud_events import encode
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.events import submitted

ONE = {JOBS: ["jobs.*.*"]}
FOUR = {f"{JOBS}_{index}": [f"jobs.{p}.*" for p in range(index, 16, 4)] for index in range(4)}


def event_of(job_id: str) -> Event:
    return Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=submitted())


async def late_write(js: JetStreamContext, job_id: str, *, subjects: list[str]) -> None:
    """Store an event in the one stream, and leave it with these subjects."""
    config = (await js.stream_info(JOBS)).config
    await js.update_stream(config.evolve(subjects=[job_subject(job_id)]))
    await js.publish(job_subject(job_id), encode(event_of(job_id)))
    await js.update_stream(config.evolve(subjects=subjects))


async def close(js: JetStreamContext, subject: str = CLOSED_SUBJECT) -> StreamConfig:
    """As a change has it after its first step; what it was before."""
    config = (await js.stream_info(JOBS)).config
    await js.update_stream(config.evolve(subjects=[subject], republish=None))
    return config


async def add_parts(js: JetStreamContext, like: StreamConfig, *names: str, **other: Any) -> None:
    """Further of the steps."""
    for name in names:
        await js.add_stream(like.evolve(name=name, subjects=FOUR[name], **other))


async def log_streams(client: Client) -> dict[str, list[str]]:
    infos = await client.jetstream().streams_info()
    names = {info.config.name or "": list(info.config.subjects or ()) for info in infos}
    return {name: subjects for name, subjects in names.items() if name.startswith(JOBS)}


async def refusal(server: NatsServer, count: int, *, prepares: bool = True) -> str | None:
    bus = Bus(server.url, name="test", log_streams=LogStreams(count), prepares_streams=prepares)
    bus.start()
    async with asyncio.timeout(10):
        await bus.wait_known()
    await bus.close()
    return bus.refusal


async def prepare_empty(server: NatsServer, *, last: int = 0) -> None:
    """One stream that holds nothing, and had so many events."""
    async with connected(server) as bus:
        for _ in range(last):
            event = event_of(new_id())
            assert isinstance(await job_log(bus).append(event, expected=0), Appended)
            await job_log(bus).purge(event.job_id)


async def check_goes_on(server: NatsServer, client: Client, late: str) -> None:
    """With one stream, which has the late event and takes others."""
    async with connected(server) as bus:
        log = job_log(bus)
        assert [event.job_id for event in await log.read(late)] == [late]
        async with log.watch(job_id := new_id()) as watch:  # they are republished again
            assert isinstance(await log.append(event_of(job_id), expected=0), Appended)
            assert await watch.next(5) is not None
    assert await log_streams(client) == ONE
