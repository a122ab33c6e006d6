"""The nats-server that `darkroom up` runs: who may do what, and how it is kept alive."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nats
import psutil
import pytest
from nats.aio.client import Client
from pydantic import SecretStr

import local.embedded
from events.bus.bus import Bus
from events.bus.health import JetStreamHealth
from events.bus.jetstream_log import JetStreamLog
from events.bus.nats_errors import NoAnswer
from events.bus.streams import JOBS, ROUTER_CONSUMER, event_subject, job_subject
from events.errors import OutcomeUnknown
from events.ids import new_id
from local.embedded import Embedded, restarted_on_failure
from local.nats_server import NatsDidNotStart, NatsServer
from operations.diagnosis.findings import Level
from operations.diagnosis.store_checks import LogCheck
from settings.log import LogSettings
from settings.settings import Settings
from settings.stores import StoreSettings
from tests.support.bus import connected, operator, stores
from tests.support.events import history_of, submitted
from tests.support.patience import FACTOR
from tests.support.polling import eventually

DIRECT_GET = f"$JS.API.DIRECT.GET.{JOBS}"


@dataclass
class Reader:
    """An operator's client with the reader's credentials and nats-py's defaults."""

    client: Client
    violations: list[str] = field(default_factory=list)

    async def note(self, error: Exception) -> None:
        self.violations.append(str(error))

    async def try_to_publish(self, subject: str, payload: bytes = b"") -> None:
        """Returns when the server has refused it."""
        await self.client.publish(subject, payload, reply=self.client.new_inbox())
        await self.client.flush()
        refusal = f'permissions violation for publish to "{subject.lower()}"'
        await eventually(lambda: any(refusal in violation for violation in self.violations))


@pytest.fixture
async def reader(nats_server: NatsServer) -> AsyncIterator[Reader]:
    reader = Reader(Client())
    await reader.client.connect(nats_server.reader_url, error_cb=reader.note)
    try:
        yield reader
    finally:
        await reader.client.close()


async def state_of(server: NatsServer) -> dict[str, tuple[int, int]]:
    """Messages and consumers of every stream, asked with the service's credentials."""
    async with operator(server) as client:
        infos = await client.jetstream().streams_info()
    return {
        str(info.config.name): (info.state.messages, info.state.consumer_count) for info in infos
    }


# What the reader may do.


async def test_the_reader_sees_stored_events(reader: Reader, bus: Bus) -> None:
    subscription = await reader.client.subscribe("events.>")
    await reader.client.flush()
    job_id = new_id()
    await bus.store(job_subject(job_id), b"an event", timeout_s=2)
    message = await subscription.next_msg(timeout=5)
    assert (message.subject, message.data) == (event_subject(job_id), b"an event")


async def test_the_reader_replays_by_direct_get(reader: Reader, bus: Bus) -> None:
    job_id = new_id()
    for data in (b"one", b"two", b"three"):
        await bus.store(job_subject(job_id), data, timeout_s=2)
    js = reader.client.jetstream()
    assert (await js.get_msg(JOBS, seq=2, direct=True)).data == b"two"
    assert (await js.get_last_msg(JOBS, job_subject(job_id), direct=True)).data == b"three"

    events, after = [], 0
    with suppress(nats.js.errors.NotFoundError):
        while True:
            message = await js.get_msg(
                JOBS, seq=after + 1, next=True, subject="jobs.*.*", direct=True
            )
            events.append(message.data)
            after = message.seq or 0
    assert events == [b"one", b"two", b"three"]


async def test_the_reader_replays_in_batches(reader: Reader, bus: Bus) -> None:
    events = [f"{n}".encode() for n in range(200)]
    for data in events:
        await bus.store(job_subject("a-job"), data, timeout_s=2)
    inbox = reader.client.new_inbox()
    answers = await reader.client.subscribe(inbox)
    request = {"seq": 1, "next_by_subj": "jobs.*.*", "batch": len(events)}
    await reader.client.publish(DIRECT_GET, json.dumps(request).encode(), reply=inbox)
    assert [(await answers.next_msg(timeout=5)).data for _ in events] == events


# What it may not.


@pytest.mark.parametrize(
    "subject",
    [
        job_subject("a-job"),
        event_subject("a-job"),
        "queue.default.0.a-job",
        "callbacks.due.a-job",
        "canary.a",
        f"$JS.API.CONSUMER.MSG.NEXT.{JOBS}.{ROUTER_CONSUMER.name}",
        f"$JS.API.CONSUMER.DELETE.{JOBS}.{ROUTER_CONSUMER.name}",
        f"$JS.API.CONSUMER.CREATE.{JOBS}",
        f"$JS.API.CONSUMER.CREATE.{JOBS}.mine",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{JOBS}.mine",
        f"$JS.API.CONSUMER.INFO.{JOBS}.{ROUTER_CONSUMER.name}",
        f"$JS.API.STREAM.DELETE.{JOBS}",
        f"$JS.API.STREAM.PURGE.{JOBS}",
        "$JS.API.DIRECT.GET.QUEUE",
    ],
)
async def test_the_reader_may_publish_nothing_else(
    nats_server: NatsServer, reader: Reader, bus: Bus, subject: str
) -> None:
    await bus.ensure_consumer(ROUTER_CONSUMER)
    before = await state_of(nats_server)
    await reader.try_to_publish(subject)
    assert await state_of(nats_server) == before


async def test_the_reader_may_not_ack_for_the_router(
    reader: Reader, bus: Bus, nats_server: NatsServer
) -> None:
    await bus.ensure_consumer(ROUTER_CONSUMER)
    await bus.store(job_subject(new_id()), b"", timeout_s=2)
    async with bus.puller(JOBS, ROUTER_CONSUMER.name) as puller:
        [message] = await puller.follow(batch=1, timeout_s=5)
    await reader.try_to_publish(message.ack_subject, b"+ACK")
    async with operator(nats_server) as client:
        info = await client.jetstream().consumer_info(JOBS, ROUTER_CONSUMER.name)
    assert info.num_ack_pending == 1


@pytest.mark.parametrize(
    "subject", ["jobs.>", "queue.>", "callbacks.>", "progress.*", "$JS.>", ">"]
)
async def test_the_reader_may_subscribe_to_nothing_else(reader: Reader, subject: str) -> None:
    await reader.client.subscribe(subject)
    await reader.client.flush()
    await eventually(lambda: reader.violations)


async def test_the_reader_hears_no_answer_to_the_service(reader: Reader, bus: Bus) -> None:
    heard: list[str] = []

    async def note(message: nats.aio.msg.Msg) -> None:
        heard.append(message.subject)

    await reader.client.subscribe("_INBOX.>", cb=note)
    await reader.client.flush()
    await bus.store(job_subject(new_id()), b"", timeout_s=2)
    await reader.client.flush()
    assert heard == []


@pytest.mark.parametrize("sequence", [1, 99], ids=["found", "not found"])
@pytest.mark.parametrize(
    "reply",
    [
        f"$JS.API.CONSUMER.DELETE.{JOBS}.{ROUTER_CONSUMER.name}",
        "$JS.API.STREAM.DELETE.QUEUE",
        job_subject("forged"),
        "queue.default.0.forged",
    ],
)
async def test_an_answer_to_the_reader_reaches_nothing_of_the_service(
    nats_server: NatsServer, reader: Reader, bus: Bus, *, reply: str, sequence: int
) -> None:
    """The server publishes its answer wherever the request says; "not found" has no body."""
    await bus.ensure_consumer(ROUTER_CONSUMER)
    await bus.store(job_subject(new_id()), b"", timeout_s=2)
    before = await state_of(nats_server)
    await reader.client.publish(DIRECT_GET, json.dumps({"seq": sequence}).encode(), reply=reply)
    # Answers keep their order: when this one is here, the other has been sent.
    await reader.client.jetstream().get_msg(JOBS, seq=1, direct=True)
    assert await state_of(nats_server) == before


# Its life.


def test_a_start_that_takes_too_long_says_so(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats", preferred_port=0)
    with pytest.raises(NatsDidNotStart, match=r"nats-server\.log"):
        server.start(timeout_s=-1)
    server.stop()
    assert not server.is_running()


def test_an_interrupted_start_leaves_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # it says there where Serve's files go
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        settings = Settings.load(data_dir=tmp_path, port=probe.getsockname()[1])

    def interrupt(part: str) -> None:
        if part == "Ray":  # nats-server is up by then
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Embedded(settings, on_part=interrupt).__enter__()
    assert not (tmp_path / "nats" / "nats-server.pid").exists()
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(p.info)]


def test_a_start_by_another_path_ends_the_server_of_a_killed_start(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nats")
    later = NatsServer(tmp_path / "link", preferred_port=0)
    later.start()
    try:
        assert not nats_server.is_running()
    finally:
        later.stop()


async def test_a_server_that_dies_is_started_again_on_its_port(nats_server: NatsServer) -> None:
    port, pid = nats_server.port, nats_server.pid
    with restarted_on_failure(nats_server):
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: nats_server.pid != pid)
        async with connected(nats_server):
            assert nats_server.port == port


async def test_the_watch_outlives_a_check_and_a_start_that_fail(
    nats_server: NatsServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    credentials = tmp_path / "nats" / "credentials.json"
    good = credentials.read_text()
    monkeypatch.setattr(local.embedded, "_WRITE_CHECK_PERIOD_S", 0.2)
    with restarted_on_failure(nats_server), caplog.at_level(logging.ERROR):
        credentials.write_text("{")
        await eventually(lambda: "nats-server was not checked" in caplog.messages)
        os.kill(nats_server.pid, signal.SIGKILL)
        await eventually(lambda: "nats-server did not restart" in caplog.messages)
        credentials.write_text(good)
        async with connected(nats_server):
            pass


async def test_a_watch_ends_while_the_server_is_still_reading_its_store(
    nats_server: NatsServer,
) -> None:
    with restarted_on_failure(nats_server):
        pid = nats_server.pid
        os.kill(pid, signal.SIGSTOP)
    assert "nats-watch" not in {thread.name for thread in threading.enumerate()}
    assert nats_server.pid == pid
    os.kill(pid, signal.SIGCONT)


def let_writes_fail(server: NatsServer) -> Callable[[], None]:
    """Make every write of the server fail, as on a full disk. Return a function that ends this."""
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (0, unlimited))
    limits = (unlimited, unlimited)
    return partial(resource.prlimit, server.pid, resource.RLIMIT_FSIZE, limits)


async def test_a_stream_with_a_failed_write_is_reported_and_the_server_restarted(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = job_subject(new_id())
    monkeypatch.setattr(local.embedded, "_WRITE_CHECK_PERIOD_S", 0.2)
    async with connected(nats_server) as bus:
        await bus.store(subject, b"before", timeout_s=5)
        health = JetStreamHealth(bus, ready_period_s=0, max_staleness_s=10)
        assert await health.ready() is None
        end = let_writes_fail(nats_server)
        with pytest.raises(NoAnswer):
            await bus.store(subject, b"fails", timeout_s=1)
        end()
        # This stream never accepts a message again. The other streams still do.
        log = JetStreamLog(bus, append_timeout_s=3600, try_timeout_s=0.5)
        [event] = history_of(submitted())
        async with asyncio.timeout(60 * FACTOR):
            with pytest.raises(OutcomeUnknown):
                await log.append(event, expected=0)
        assert await stores(bus)
        refusal = "The event log cannot be written (stream JOBS): file too large."
        assert await health.ready() == await health.known_refusal() == refusal
        log = LogSettings(nats_url=SecretStr(nats_server.url))
        check = LogCheck(log, StoreSettings(data_dir=tmp_path), is_up=False, full_ratio=0.85)
        found = (await check.run())[0]
        assert (found.level, found.what) == (Level.ERROR, refusal)

        asked: list[bool] = []
        answers = iter([False, False])
        has_room = nats_server.has_room

        def has_room_later() -> bool:
            asked.append(next(answers, True) and has_room())
            return asked[-1]

        monkeypatch.setattr(nats_server, "has_room", has_room_later)
        pid = nats_server.pid
        with restarted_on_failure(nats_server):
            await eventually(lambda: len(asked) > 1)
            assert nats_server.pid == pid
            await eventually(lambda: stores(bus, subject))
        assert asked == [False, False, True]
        last = await bus.last(JOBS, subject)
        assert last is not None
        assert last.data == b""
        await eventually(lambda: is_ready(health))


async def is_ready(health: JetStreamHealth) -> bool:
    return await health.ready() is None
