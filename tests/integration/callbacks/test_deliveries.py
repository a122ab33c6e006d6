"""The callbacks role on a real nats-server, with receivers on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from events.bus.streams import CALLBACKS, due_subject, scheduled_subject
from events.callback_address import AddressRule
from events.delivery import fold_delivery
from events.ids import new_id
from events.job import fold
from events.log import Appended, Conflict, EventLog, Writer, utc_now
from events.result import ResultResponse, Status, result_of
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    Event,
    EventData,
    Failed,
    RedeliveryRequested,
)
from events.webhook_secret import webhook_secret
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, hang, status
from tests.support.callbacks.role import (
    SECRET,
    SETTINGS,
    TRACEPARENT,
    URL_FOR,
    World,
    api_key,
    ids,
    running_world,
)
from tests.support.events import submitted
from tests.support.polling import eventually


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_world(tmp_path) as world:
        yield world


async def test_a_callback_is_the_result_body_signed_with_the_keys_secret(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url, key_id="k7")
        events = await world.end(job_id)
        (request,) = receiver.received

    job = fold(await world.jobs.read(job_id))
    assert job is not None
    assert request.body == result_of(job, URL_FOR).body()
    assert ResultResponse.model_validate_json(request.body).status == Status.COMPLETED
    assert request.headers["webhook-id"] == f"msg_{job_id}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["traceparent"] == TRACEPARENT
    assert isinstance(events[0], CallbackAttempted)
    assert (events[0].attempt, events[0].status) == (1, 200)
    assert events[1:] == [CallbackDelivered(attempt=1)]

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
        events = (submitted(callback_url=receiver.url), Failed(message="no such model"))
        await world.store(world.jobs, job_id, *events)
        await world.queue.add(job_id)
        await world.end(job_id)
        body = ResultResponse.model_validate_json(receiver.received[0].body)
    assert (body.status, body.message) == (Status.FAILED, "no such model")


async def test_a_failed_try_is_repeated_with_the_same_id(world: World) -> None:
    answers = [status(500), status(429, headers="Retry-After: 0\r\n"), status(200)]
    async with Receiver(answers) as receiver, world.callbacks():
        events = await world.end(await world.ended_job(receiver.url))
        assert len(set(ids(receiver.received))) == 1
        assert len({request.body for request in receiver.received}) == 1
    tries = [data for data in events if isinstance(data, CallbackAttempted)]
    assert [data.status for data in tries] == [500, 429, 200]
    assert [data.retry_at is not None for data in tries] == [True, True, False]
    assert events[-1] == CallbackDelivered(attempt=3)


async def test_a_receiver_that_never_takes_it_exhausts_the_tries(world: World) -> None:
    async with Receiver([status(503)]) as receiver, world.callbacks():
        events = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 4
    assert isinstance(events[-1], CallbackExhausted)
    assert events[-1].attempts == 4
    assert "503" in events[-1].message


async def test_410_is_not_tried_again(world: World) -> None:
    async with Receiver([status(410)]) as receiver, world.callbacks():
        events = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1
    assert isinstance(events[-1], CallbackExhausted)


async def test_a_redirect_is_not_followed_and_stops_after_three_tries(world: World) -> None:
    async with Receiver() as inside:
        redirect = status(307, headers=f"Location: {inside.url}\r\n")
        async with Receiver([redirect]) as receiver, world.callbacks():
            events = await world.end(await world.ended_job(receiver.url))
            assert len(receiver.received) == 3
        assert inside.connections == 0
    assert isinstance(events[-1], CallbackExhausted)


async def test_a_private_address_is_never_dialled(world: World) -> None:
    async with Receiver() as receiver, world.callbacks(rule=AddressRule()):
        events = await world.end(await world.ended_job(receiver.url))
        assert receiver.connections == 0
    assert isinstance(events[-1], CallbackExhausted)
    assert "127.0.0.1 is not a public address" in events[-1].message


async def test_a_receiver_that_hangs_costs_the_others_nothing(world: World) -> None:
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    async with Receiver([hang]) as hung, Receiver() as healthy:
        hanging = [await world.ended_job(hung.url) for _ in range(30)]
        async with world.callbacks(settings=settings):
            await hung.wait_for(settings.per_host)
            delivered = [await world.ended_job(healthy.url) for _ in range(30)]
            for job_id in delivered:
                await world.end(job_id)
            assert len(hung.received) == settings.per_host
        assert set(hanging) <= await world.queue.job_ids()


async def test_a_receiver_gets_no_more_than_its_share_at_once(world: World) -> None:
    async with Receiver([status(200, after_s=0.02)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(40)]
        async with world.callbacks():
            for job_id in jobs:
                await world.end(job_id)
        assert receiver.most_at_once == SETTINGS.per_host
        assert sorted(ids(receiver.received)) == sorted(f"msg_{job_id}" for job_id in jobs)


async def test_an_entry_that_is_longer_in_work_than_its_ack_wait_is_sent_once(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
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
        assert await world.events(job_id) == []


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
    """A delivery log whose writer is never answered once it comes to one kind of event."""

    def __init__(self, log: EventLog, kind: type[EventData]) -> None:
        self._log = log
        self._kind = kind
        self.stopped = asyncio.Event()

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        if isinstance(event.data, self._kind):
            self.stopped.set()
            await asyncio.Event().wait()
        return await self._log.append(event, expected=expected)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@pytest.mark.parametrize("data", [CallbackAttempted, CallbackDelivered])
async def test_a_death_before_an_event_is_stored_loses_no_delivery(
    world: World, data: type[EventData]
) -> None:
    stopping: Any = StopsBefore(world.deliveries, data)
    async with Receiver() as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(deliveries=stopping):
            await asyncio.wait_for(stopping.stopped.wait(), DEADLINE_S)
        assert not (await world.delivery(job_id)).ended
        async with world.callbacks():
            events = await world.end(job_id)
        assert isinstance(events[-1], CallbackDelivered)
        assert len(receiver.received) == 2
        assert len(set(ids(receiver.received))) == 1


async def test_an_entry_whose_job_is_in_work_already_is_not_sent_beside_it(world: World) -> None:
    """What is left where the answer to parking was lost: the old entry, and the parked one."""
    answer = asyncio.Event()
    async with Receiver([status(200, after=answer)]) as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url)
        await receiver.wait_for(1)
        await world.queue.park(job_id, utc_now())
        await eventually(lambda: has_two_entries(world, job_id))
        answer.set()
        await world.end(job_id)
        assert len(receiver.received) == 1


async def has_two_entries(world: World, job_id: str) -> bool:
    """Both due."""
    return await world.bus.pending(CALLBACKS, "callbacks.>") == {due_subject(job_id): 2}


async def test_of_two_instances_that_send_the_same_one_ends_it_once(world: World) -> None:
    both_came = asyncio.Event()
    settings = SETTINGS.model_copy(update={"timeout_s": DEADLINE_S})
    async with Receiver([status(200, after=both_came)]) as receiver:
        job_id = await world.ended_job(receiver.url)
        async with world.callbacks(settings=settings), world.callbacks(settings=settings):
            await receiver.wait_for(1)
            await world.queue.park(job_id, utc_now())
            await receiver.wait_for(2)
            both_came.set()
            events = await world.end(job_id)
    assert sum(isinstance(data, CallbackDelivered) for data in events) == 1
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
        assert len(receiver.received) <= len(jobs) + SETTINGS.per_host


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


LEFT_ALONE = {
    "breaker_failures": 2,
    "breaker_open_s": 0.5,
    "breaker_longest_s": 0.5,
    "per_host": 1,
    "delays_s": (0, *[0.1] * 9),
}


async def test_a_receiver_that_fails_is_left_alone_and_what_was_withheld_is_no_try(
    world: World,
) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE)
    async with Receiver([status(500)] * 4 + [status(200)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(12)]
        async with world.callbacks(settings=settings):
            events = {job_id: await world.end(job_id) for job_id in jobs}
        assert len(receiver.received) == 4 + len(jobs)
    for each in events.values():
        tries = [data for data in each if isinstance(data, CallbackAttempted)]
        assert [data.attempt for data in tries] == list(range(1, len(tries) + 1))
        assert each[-1] == CallbackDelivered(attempt=len(tries))
        assert sum(isinstance(data, CallbackWithheld) for data in each) <= 1
    untried = [each[:-2] for each in events.values() if each[-1] == CallbackDelivered(attempt=1)]
    assert [CallbackWithheld()] in untried, "withheld, then taken at the first try"


async def test_what_is_withheld_for_too_long_is_given_up(world: World) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE | {"breaker_open_s": 60.0, "withheld_s": 1.0})
    async with Receiver([status(500)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(8)]
        async with world.callbacks(settings=settings):
            ends = [(await world.end(job_id))[-1] for job_id in jobs]
        assert len(receiver.received) == 2
    assert all(isinstance(end, CallbackExhausted) for end in ends)
    assert sorted(end.attempts for end in ends) == [0] * 6 + [1] * 2
    assert all("left alone" in end.message for end in ends)


async def test_a_receiver_that_is_left_alone_costs_no_other_a_try(world: World) -> None:
    settings = SETTINGS.model_copy(update=LEFT_ALONE | {"breaker_open_s": 60.0})
    async with Receiver([status(500)]) as dead, Receiver() as healthy:
        failing = [await world.ended_job(dead.url) for _ in range(20)]
        async with world.callbacks(settings=settings):
            await dead.wait_for(2)
            for _ in range(20):
                await world.end(await world.ended_job(healthy.url))
            assert len(dead.received) == 2
        assert set(failing) <= await world.queue.job_ids()


async def test_a_delivery_is_signed_for_the_owners_other_live_keys_too(world: World) -> None:
    """During a rotation the receiver may know either secret."""
    now = utc_now()
    for id, owner, changes in (
        ("older", "alice", {}),
        ("newer", "alice", {"created_at": now}),
        ("revoked", "alice", {"revoked_at": now}),
        ("foreign", "bob", {}),
    ):
        await world.keys.add(api_key(id, owner, **changes))
    async with Receiver() as receiver, world.callbacks():
        await world.end(await world.ended_job(receiver.url, key_id="used", owner="alice"))
        (request,) = receiver.received
    signatures = request.headers["webhook-signature"].split(" ")
    assert len(signatures) == SETTINGS.secrets == 3
    for key_id in ("used", "newer", "older"):
        Webhook(webhook_secret(SECRET, key_id)).verify(request.body, request.headers)
    for key_id in ("revoked", "foreign"):
        with pytest.raises(WebhookVerificationError):
            Webhook(webhook_secret(SECRET, key_id)).verify(request.body, request.headers)


async def test_a_delivery_without_a_trace_begins_one_of_its_own(world: World) -> None:
    async with Receiver([status(500), status(200)]) as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url, traceparent=None)
        await world.end(job_id)
        first, second = (each.headers["traceparent"].split("-") for each in receiver.received)
    assert first[1] == second[1] == UUID(job_id).hex
    assert first[2] != second[2]
    agents = {each.headers["user-agent"] for each in receiver.received}
    assert agents == {f"Darkroom/{version('darkroom')}"}
