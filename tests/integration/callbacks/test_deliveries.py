"""What is sent, how often and how it is signed: the role with receivers on real sockets."""

from __future__ import annotations

from importlib.metadata import version
from uuid import UUID

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from events.callback_address import AddressRule
from events.ids import new_id
from events.job import fold
from events.log import utc_now
from events.result import ResultResponse, Status, result_of
from events.store.records import KeyLimits
from events.types import (
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    Failed,
    RedeliveryRequested,
)
from events.webhook_secret import webhook_secret
from tests.support.callbacks.receiver import Receiver, status
from tests.support.callbacks.role import SECRET, SETTINGS, TRACEPARENT, URL_FOR, World, api_key, ids
from tests.support.events import submitted
from tests.support.polling import eventually


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


async def test_a_host_that_the_key_may_no_longer_have_called_is_never_dialled(
    world: World,
) -> None:
    await world.keys.add(api_key("k1", "alice", limits=KeyLimits(callback_hosts=("a.example",))))
    async with Receiver() as receiver, world.callbacks():
        events = await world.end(await world.ended_job(receiver.url))
        assert receiver.connections == 0
    assert isinstance(events[-1], CallbackExhausted)
    assert "the key of the job may not have this host called back" in events[-1].message


async def test_the_jobs_of_a_revoked_key_still_call_back(world: World) -> None:
    await world.keys.add(api_key("k1", "alice", revoked_at=utc_now()))
    async with Receiver() as receiver, world.callbacks():
        events = await world.end(await world.ended_job(receiver.url))
    assert events[-1] == CallbackDelivered(attempt=1)


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
