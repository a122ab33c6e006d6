"""The callbacks role on a real nats-server, with receivers on real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from actors.callbacks import Callbacks
from actors.sender import Sender
from events.callback_address import AddressRule
from events.delivery import Delivery, fold_delivery
from events.errors import LogUnavailable
from events.ids import new_id
from events.jetstream import Bus
from events.jetstream_log import JetStreamLog
from events.job import fold
from events.log import Appended, Conflict, EventLog, Writer, utc_now
from events.queues import CallbackQueue
from events.result import ResultResponse, Status, result_of
from events.streams import CALLBACKS, DELIVERIES, delivery_subject, scheduled_subject
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    Completed,
    Event,
    Fact,
    Failed,
    ImageStored,
    RedeliveryRequested,
    Started,
)
from events.webhook_secret import webhook_secret
from serve_app.nats_server import NatsServer
from settings import Settings
from storage.tokens import url_for
from tests.support.jobs import submitted
from tests.support.receiver import DEADLINE_S, Received, Receiver, hang, status

SECRET = b"a secret of sixteen"
URL_FOR = url_for("http://images.example", SECRET)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SETTINGS = Settings(callback_delays_s=(0, 0.2, 0.2, 0.2), callback_timeout_s=3.0)
IMAGE = ImageStored(
    index=0, attempt=1, key="k", size_bytes=9, digest="sha256:0", width=64, height=64, seed=7
)


@dataclass
class World:
    server: NatsServer
    bus: Bus

    def __post_init__(self) -> None:
        self.queue = CallbackQueue(self.bus)
        self.jobs = JetStreamLog(self.bus)
        self.deliveries = JetStreamLog(
            self.bus, stream=DELIVERIES, subject_of=delivery_subject, try_timeout_s=0.5
        )

    async def ended_job(self, callback_url: str | None, **changes: Any) -> str:
        """A completed job with one image, its callback on the queue."""
        job_id = new_id()
        facts = (
            submitted(callback_url=callback_url, **changes),
            Started(attempt=1, actor="a"),
            IMAGE,
            Completed(images=1),
        )
        await self.store(self.jobs, job_id, *facts)
        await self.queue.add(job_id)
        return job_id

    @staticmethod
    async def store(log: EventLog, job_id: str, *facts: Fact) -> None:
        history = await log.read(job_id)
        position = history[-1].position if history else 0
        for version, fact in enumerate(facts, len(history) + 1):
            event = Event(
                id=new_id(),
                job_id=job_id,
                version=version,
                time=utc_now(),
                fact=fact,
                traceparent=TRACEPARENT,
            )
            outcome = await log.append(event, expected=position)
            assert isinstance(outcome, Appended)
            position = outcome.event.position

    async def delivery(self, job_id: str) -> Delivery:
        return fold_delivery(await self.deliveries.read(job_id))

    async def facts(self, job_id: str) -> list[Fact]:
        return [event.fact for event in await self.deliveries.read(job_id)]

    async def end(self, job_id: str) -> list[Fact]:
        """The delivery's facts once it has ended and nothing of it is left on the queue."""
        await eventually(lambda: self._is_over(job_id))
        return await self.facts(job_id)

    async def _is_over(self, job_id: str) -> bool:
        with suppress(LogUnavailable):
            return (await self.delivery(job_id)).ended and job_id not in await self.queue.job_ids()
        return False

    @asynccontextmanager
    async def callbacks(
        self,
        *,
        settings: Settings = SETTINGS,
        rule: AddressRule | None = None,
        deliveries: EventLog | None = None,
    ) -> AsyncGenerator[None]:
        """The role, running."""
        loopback = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
        sender = Sender(rule or loopback, settings=settings)
        role = Callbacks(
            bus=self.bus,
            queue=self.queue,
            jobs=self.jobs,
            deliveries=deliveries or self.deliveries,
            sender=sender,
            url_for=URL_FOR,
            secret=SECRET,
            settings=settings,
            ack_wait_s=1.5,
        )
        task = asyncio.create_task(role.run())
        try:
            yield
            assert not task.done(), "the role ended"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await sender.close()


async def eventually(condition: Callable[[], Any], timeout_s: float = DEADLINE_S) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < give_up_at, "it did not come to this in time"
        await asyncio.sleep(0.02)


def ids(received: list[Received]) -> list[str]:
    return [request.headers["webhook-id"] for request in received]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    server = NatsServer(tmp_path / "nats", preferred_port=0)
    server.start()
    bus = Bus(server.url, name="test")
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    yield World(server, bus)
    await bus.close()
    server.stop()


async def test_a_callback_is_the_result_body_signed_with_the_keys_secret(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url, key_id="k7")
        facts = await world.end(job_id)
        (request,) = receiver.received

    job = fold(await world.jobs.read(job_id))
    assert job is not None
    assert request.body == result_of(job, URL_FOR).body()
    assert ResultResponse.model_validate_json(request.body).status == Status.COMPLETED
    assert request.headers["webhook-id"] == f"msg_{job_id}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["traceparent"] == TRACEPARENT
    assert isinstance(facts[0], CallbackAttempted)
    assert (facts[0].attempt, facts[0].status) == (1, 200)
    assert facts[1:] == [CallbackDelivered(attempt=1)]

    webhook = Webhook(webhook_secret(SECRET, "k7"))
    webhook.verify(request.body, request.headers)
    changed = request.body.replace(b'"status":1', b'"status":2', 1)
    with pytest.raises(WebhookVerificationError):
        webhook.verify(changed, request.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(webhook_secret(SECRET, "k8")).verify(request.body, request.headers)


async def test_a_job_that_failed_is_called_back_too(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = new_id()
        facts = (submitted(callback_url=receiver.url), Failed(message="no such model"))
        await world.store(world.jobs, job_id, *facts)
        await world.queue.add(job_id)
        await world.end(job_id)
        body = ResultResponse.model_validate_json(receiver.received[0].body)
    assert (body.status, body.message) == (Status.FAILED, "no such model")


async def test_a_failed_try_is_repeated_with_the_same_id(world: World) -> None:
    answers = [status(500), status(429, headers="Retry-After: 0\r\n"), status(200)]
    async with Receiver(answers) as receiver, world.callbacks():
        facts = await world.end(await world.ended_job(receiver.url))
        assert len(set(ids(receiver.received))) == 1
        assert len({request.body for request in receiver.received}) == 1
    tries = [fact for fact in facts if isinstance(fact, CallbackAttempted)]
    assert [fact.status for fact in tries] == [500, 429, 200]
    assert [fact.retry_at is not None for fact in tries] == [True, True, False]
    assert facts[-1] == CallbackDelivered(attempt=3)


async def test_a_receiver_that_never_takes_it_exhausts_the_tries(world: World) -> None:
    async with Receiver([status(503)]) as receiver, world.callbacks():
        facts = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 4
    assert isinstance(facts[-1], CallbackExhausted)
    assert facts[-1].attempts == 4
    assert "503" in facts[-1].message


async def test_410_is_not_tried_again(world: World) -> None:
    async with Receiver([status(410)]) as receiver, world.callbacks():
        facts = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1
    assert isinstance(facts[-1], CallbackExhausted)


async def test_a_redirect_is_not_followed_and_stops_after_three_tries(world: World) -> None:
    async with Receiver() as inside:
        redirect = status(307, headers=f"Location: {inside.url}\r\n")
        async with Receiver([redirect]) as receiver, world.callbacks():
            facts = await world.end(await world.ended_job(receiver.url))
            assert len(receiver.received) == 3
        assert inside.connections == 0
    assert isinstance(facts[-1], CallbackExhausted)


async def test_a_private_address_is_never_dialled(world: World) -> None:
    async with Receiver() as receiver, world.callbacks(rule=AddressRule()):
        facts = await world.end(await world.ended_job(receiver.url))
        assert receiver.connections == 0
    assert isinstance(facts[-1], CallbackExhausted)
    assert "127.0.0.1 is not a public address" in facts[-1].message


async def test_a_receiver_that_hangs_costs_the_others_nothing(world: World) -> None:
    settings = SETTINGS.model_copy(update={"callback_timeout_s": DEADLINE_S})
    async with Receiver([hang]) as hung, Receiver() as healthy:
        hanging = [await world.ended_job(hung.url) for _ in range(30)]
        async with world.callbacks(settings=settings):
            await hung.wait_for(settings.callback_per_host)
            delivered = [await world.ended_job(healthy.url) for _ in range(30)]
            for job_id in delivered:
                await world.end(job_id)
            assert len(hung.received) == settings.callback_per_host
        assert set(hanging) <= await world.queue.job_ids()


async def test_a_receiver_gets_no_more_than_its_share_at_once(world: World) -> None:
    async with Receiver([status(200, after_s=0.02)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(40)]
        async with world.callbacks():
            for job_id in jobs:
                await world.end(job_id)
        assert receiver.most_at_once == SETTINGS.callback_per_host
        assert sorted(ids(receiver.received)) == sorted(f"msg_{job_id}" for job_id in jobs)


async def test_an_entry_that_is_longer_in_work_than_its_ack_wait_is_sent_once(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update={"callback_timeout_s": DEADLINE_S})
    async with Receiver([status(200, after_s=4)]) as receiver:
        async with world.callbacks(settings=settings):
            await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1


async def test_what_has_no_end_no_address_or_no_job_leaves_the_queue(world: World) -> None:
    async with world.callbacks():
        without_url = await world.ended_job(None)
        unended, unknown = new_id(), new_id()
        await world.store(world.jobs, unended, submitted(callback_url="http://example.com/"))
        for job_id in (unended, unknown):
            await world.queue.add(job_id)

        async def queue_is_empty() -> bool:
            return not await world.queue.job_ids()

        await eventually(queue_is_empty)
    for job_id in (without_url, unended, unknown):
        assert await world.facts(job_id) == []


async def test_an_ended_delivery_is_not_sent_again_unless_asked_for(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url)
        await world.end(job_id)
        await world.queue.add(job_id)
        await world.end(job_id)
        assert len(receiver.received) == 1
        await world.store(world.deliveries, job_id, RedeliveryRequested())
        await world.queue.park(job_id, utc_now())
        await receiver.wait_for(2)
        assert (await world.end(job_id))[-1] == CallbackDelivered(attempt=1)
        assert len(set(ids(receiver.received))) == 1


async def test_an_early_entry_is_parked_until_its_time(world: World) -> None:
    """What a death between `CallbackAttempted` and parking leaves."""
    at = utc_now() + timedelta(seconds=2.5)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        early = CallbackAttempted(attempt=1, status=500, latency_s=0, retry_at=at)
        await world.store(world.deliveries, job_id, early)
        async with world.callbacks():
            await eventually(lambda: is_parked(world, job_id))
            await world.queue.add(job_id)  # as a router does that starts again
            await receiver.wait_for(1)
            assert utc_now() >= at
            assert (await world.end(job_id))[-1] == CallbackDelivered(attempt=2)


async def is_parked(world: World, job_id: str) -> bool:
    """Nothing but one scheduled entry is on the queue."""
    return await world.bus.pending(CALLBACKS, "callbacks.>") == {scheduled_subject(job_id): 1}


class StopsBefore:
    """A delivery log whose writer is never answered once it comes to one kind of fact."""

    def __init__(self, log: EventLog, kind: type[Fact]) -> None:
        self._log = log
        self._kind = kind
        self.stopped = asyncio.Event()

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        if isinstance(event.fact, self._kind):
            self.stopped.set()
            await asyncio.Event().wait()
        return await self._log.append(event, expected=expected)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.mark.parametrize("fact", [CallbackAttempted, CallbackDelivered])
async def test_a_death_before_a_fact_is_stored_loses_no_delivery(
    world: World, fact: type[Fact]
) -> None:
    stopping: Any = StopsBefore(world.deliveries, fact)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(deliveries=stopping):
            await asyncio.wait_for(stopping.stopped.wait(), DEADLINE_S)
        assert not (await world.delivery(job_id)).ended
        async with world.callbacks():
            facts = await world.end(job_id)
        assert isinstance(facts[-1], CallbackDelivered)
        assert len(receiver.received) == 2
        assert len(set(ids(receiver.received))) == 1


async def test_of_two_instances_that_send_the_same_one_ends_it_once(world: World) -> None:
    async with Receiver([status(200, after_s=0.3)]) as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(), world.callbacks():
            await world.queue.park(job_id, utc_now())
            await receiver.wait_for(2)
            facts = await world.end(job_id)
    assert sum(isinstance(fact, CallbackDelivered) for fact in facts) == 1
    assert len(set(ids(receiver.received))) == 1


async def test_deliveries_go_on_after_nats_was_away(world: World) -> None:
    async with Receiver([status(200, after_s=0.05)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(100)]
        async with world.callbacks():
            await receiver.wait_for(10)
            await asyncio.to_thread(world.server.stop)
            await asyncio.to_thread(world.server.start)
            for job_id in jobs:
                assert isinstance((await world.end(job_id))[-1], CallbackDelivered)
        assert set(ids(receiver.received)) == {f"msg_{job_id}" for job_id in jobs}
        assert len(receiver.received) <= len(jobs) + SETTINGS.callback_per_host


async def test_a_writer_of_deliveries_continues_their_own_versions(world: World) -> None:
    job_id = new_id()
    writer = Writer(world.deliveries, fold=fold_delivery)
    for _ in range(3):
        delivery, added = await writer.write(
            job_id, await world.delivery(job_id), lambda known: (RedeliveryRequested(),)
        )
        assert added == (RedeliveryRequested(),)
    assert delivery.version == 3
    assert await world.bus.pending(CALLBACKS, "callbacks.>") == {}
