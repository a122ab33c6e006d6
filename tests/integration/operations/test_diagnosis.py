"""The event log as `darkroom doctor` sees it, on a real nats-server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats.js.api
from pydantic import SecretStr

from events.bus.bus import Bus
from events.bus.streams import JOBS, QUEUE
from local.nats_server import NatsServer
from operations.diagnosis.findings import Finding, Level
from operations.diagnosis.store_checks import LogCheck
from settings.log import LogSettings
from settings.stores import StoreSettings
from tests.support.bus import connected, operator


async def look(url: str, folder: Path, **members: int) -> list[Finding]:
    log = LogSettings(nats_url=SecretStr(url), **members)
    stores = StoreSettings(data_dir=folder)
    return await LogCheck(log, stores, is_up=False, full_ratio=0.85, timeout_s=2).run()


async def test_a_log_without_streams_is_told(nats_server: NatsServer, tmp_path: Path) -> None:
    [found] = await look(nats_server.url, tmp_path)
    assert found.level is Level.ERROR
    assert JOBS in found.what


async def test_a_log_as_it_should_be_is_told_with_its_clock(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    streams, clock = await look(nats_server.url, tmp_path)
    assert (streams.part, streams.level) == ("event log", Level.OK)
    assert (clock.part, clock.level) == ("clock", Level.OK)


async def test_streams_are_found_in_an_account_that_has_very_many(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    async with operator(nats_server) as client:
        js = client.jetstream()
        storage = nats.js.api.StorageType.MEMORY
        names = [f"A{number}" for number in range(1100)]
        await asyncio.gather(
            *(js.add_stream(name=name, subjects=[f"a.{name}"], storage=storage) for name in names)
        )
        found, _ = await look(nats_server.url, tmp_path)
    assert (found.level, found.part) == (Level.OK, "event log")


async def test_a_stream_that_is_otherwise_and_a_log_that_is_full_are_told(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    async with connected(nats_server) as bus, operator(nats_server) as client:
        js = client.jetstream()
        queue = (await js.stream_info(QUEUE)).config
        await js.update_stream(queue.evolve(discard=nats.js.api.DiscardPolicy.NEW))
        await bus.store("jobs.0.a", bytes(9000), timeout_s=5)
        jobs = (await js.stream_info(JOBS)).config
        await js.update_stream(jobs.evolve(max_bytes=10_000))
        stream, full, _ = await look(nats_server.url, tmp_path)
    assert (stream.level, f"{QUEUE} differs" in stream.what) == (Level.WARNING, True)
    assert "discard" in stream.what
    assert (full.level, "full" in full.what) == (Level.ERROR, True)


async def test_a_server_that_does_not_take_the_password_is_told_without_it(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    url = f"nats://service:hidden@127.0.0.1:{nats_server.port}"
    [found] = await look(url, tmp_path)
    assert found.level is Level.ERROR
    assert "hidden" not in f"{found.what} {found.remedy}"
    assert found.remedy is not None
