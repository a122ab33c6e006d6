"""Callbacks: their content, attempts and signatures, and the cost of a bad receiver for others."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from uuid import UUID

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from actors.callbacks.receivers import BreakerLimits
from events.callback_address import AddressRule
from events.ids import new_id
from events.log import utc_now
from events.result import ResultResponse, Status, result_of
from events.store.records import KeyLimits
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    RedeliveryRequested,
)
from storage.service_secret import webhook_secret
from tests.support.callbacks.receiver import DEADLINE_S, Receiver, hang, status
from tests.support.callbacks.role import (
    LIMITS,
    SECRET,
    TRACEPARENT,
    URL_FOR,
    World,
    api_key,
    ids,
)
from tests.support.events import job_in, submitted
from tests.support.polling import eventually


async def test_a_callback_is_the_result_body_signed_with_the_keys_secret(world: World) -> None:
    async with Receiver() as receiver, world.callbacks():
        job_id = await world.ended_job(receiver.url, key_id="k7")
        events = await world.end(job_id)
        (request,) = receiver.received

    assert request.body == result_of(await job_in(world.jobs, job_id), URL_FOR).body()
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


@pytest.mark.parametrize(("code", "tries"), [(503, 4), (404, 3), (307, 3), (410, 1)])
async def test_what_no_receiver_takes_is_given_up_after_as_many_tries_as_the_policy_says(
    world: World, code: int, tries: int
) -> None:
    async with Receiver() as inside:
        refusal = status(code, headers=f"Location: {inside.url}\r\n")
        async with Receiver([refusal]) as receiver, world.callbacks():
            events = await world.end(await world.ended_job(receiver.url))
            assert len(receiver.received) == tries
        assert inside.connections == 0, "no redirect is followed"
    assert isinstance(events[-1], CallbackExhausted)
    assert events[-1].attempts == tries
    assert str(code) in events[-1].message


@pytest.mark.parametrize(
    ("rule", "hosts", "message"),
    [
        (AddressRule(), None, "127.0.0.1 is not a public address"),
        (None, ("a.example",), "the key of the job may not use this callback host"),
    ],
    ids=["a private address", "not a host of the key"],
)
async def test_what_may_not_be_called_back_is_never_dialled(
    world: World, rule: AddressRule | None, hosts: tuple[str, ...] | None, message: str
) -> None:
    await world.keys.add(api_key("k1", "alice", limits=KeyLimits(callback_hosts=hosts)))
    async with Receiver() as receiver, world.callbacks(rule=rule):
        events = await world.end(await world.ended_job(receiver.url))
        assert receiver.connections == 0
    assert isinstance(events[-1], CallbackExhausted)
    assert message in events[-1].message


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
    assert len(signatures) == 3
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


async def test_a_receiver_that_hangs_costs_the_others_nothing(world: World) -> None:
    async with Receiver([hang]) as hung, Receiver() as healthy:
        hanging = [await world.ended_job(hung.url) for _ in range(LIMITS.per_host + 5)]
        async with world.callbacks(timeout_s=DEADLINE_S):
            await hung.wait_for(LIMITS.per_host)
            for _ in range(10):
                await world.end(await world.ended_job(healthy.url))
            assert len(hung.received) == LIMITS.per_host
        assert set(hanging) <= await world.queue.job_ids()


async def test_a_receiver_gets_no_more_than_its_share_at_once(world: World) -> None:
    async with Receiver([status(200, after_s=0.02)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(2 * LIMITS.per_host)]
        async with world.callbacks():
            for job_id in jobs:
                await world.end(job_id)
        assert receiver.most_at_once == LIMITS.per_host
        assert sorted(ids(receiver.received)) == sorted(f"msg_{job_id}" for job_id in jobs)


async def test_a_receiver_that_fails_is_left_alone_and_what_was_withheld_is_no_try(
    world: World,
) -> None:
    limits = replace(
        LIMITS,
        breaker=BreakerLimits(failures=2, open_s=0.5, longest_open_s=0.5),
        per_host=1,
        delays_s=(0, *[0.1] * 9),
    )
    async with Receiver([status(500)] * 3 + [status(200)]) as receiver:
        jobs = [await world.ended_job(receiver.url) for _ in range(6)]
        async with world.callbacks(limits=limits):
            events = [await world.end(job_id) for job_id in jobs]
        assert len(receiver.received) == 3 + len(jobs)
    for each in events:
        tries = [data for data in each if isinstance(data, CallbackAttempted)]
        assert [data.attempt for data in tries] == list(range(1, len(tries) + 1))
        assert each[-1] == CallbackDelivered(attempt=len(tries))
        assert sum(isinstance(data, CallbackWithheld) for data in each) <= 1
    untried = [each[:-2] for each in events if each[-1] == CallbackDelivered(attempt=1)]
    assert [CallbackWithheld()] in untried, "withheld, then taken at the first try"
