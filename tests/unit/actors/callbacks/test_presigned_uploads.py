"""Images that are put where their caller said, before the end is told."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from actors.callbacks.presigned_uploads import UploadPermits
from events.decisions import Command, Complete, FailAttempt, Start, StoreImage, Submit
from events.delivery import SendResult, fold_delivery
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.result import ImageResult, PutResult, Status, result_of
from events.store.records import KeyLimits, Scope
from events.types import CallbackAttempted, CallbackDelivered
from serve_app.access.api_keys import mint
from storage.service_secret import sealed
from tests.support.callbacks.bench import SECRET, TAKEN, Bench
from tests.support.events import image, submitted
from tests.support.polling import eventually

HOOK = "http://127.0.0.1/hook"
URLS = [f"http://127.0.0.1/bucket/{at}.png?signature=s3cret-{at}" for at in range(3)]
START = Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())
END = Complete("a", images=2)
FAILED = SendResult(latency_s=0.1, status=503)
FORBIDDEN = SendResult(latency_s=0.1, status=403)
LARGE = bytes(range(256)) * 3000


async def ended(
    bench: Bench,
    *,
    urls: list[str] = URLS,
    secret: bytes = SECRET,
    images: int = 2,
    end: Command = END,
    at: datetime | None = None,
    **asked: Any,
) -> str:
    """A job that has ended with images, whose delivery is due."""
    job_id, writer = new_id(), JobWriter(bench.jobs, now=lambda: at or utc_now())
    addresses = tuple(sealed(secret, url) for url in urls)
    await writer.submit(job_id, Submit(submitted(image_puts=addresses, images=images, **asked)))
    stored = []
    for index in range(images):
        data = LARGE if index == 0 else b"small"
        key = f"{job_id}/1/{index}.png"
        await bench.images.put(key, data)
        stored.append(StoreImage("a", image(index, key=key, size_bytes=len(data))))
    for command in (START, *stored, end):
        job = await writer.load(job_id)
        assert job is not None
        await writer.execute(command, job)
    await bench.queue.add(job_id)
    return job_id


async def told(bench: Bench, job_id: str) -> tuple[ImageResult, ...]:
    """What the result says of the images."""
    job = await JobWriter(bench.jobs).load(job_id)
    assert job is not None
    delivery = fold_delivery(await bench.deliveries.read(job_id))
    return result_of(job, lambda *_: "", delivery=delivery).results


async def test_each_image_is_put_at_its_address_and_then_the_end_is_told(bench: Bench) -> None:
    job_id = await ended(bench, callback_url=HOOK)
    await bench.deliver(job_id)
    assert {url: data for url, (data, _) in bench.sender.put_at.items()} == {
        URLS[0]: LARGE,
        URLS[1]: b"small",
    }
    assert bench.sender.put_at[URLS[0]][1] == {
        "Content-Type": "image/png",
        "Content-Length": str(len(LARGE)),
    }
    assert [each.put for each in await told(bench, job_id)] == [PutResult(status=1)] * 2
    [body] = bench.sender.bodies
    assert [each["put"] for each in body["results"]] == [{"status": 1}] * 2


async def test_a_delivery_without_a_callback_ends_and_counts_as_none(bench: Bench) -> None:
    job_id = await ended(bench)
    await bench.deliver(job_id)
    *puts, end = [event.data for event in await bench.deliveries.read(job_id)]
    assert [isinstance(put, CallbackAttempted) and put.about for put in puts] == ["put-0", "put-1"]
    assert end == CallbackDelivered(attempt=0)
    assert bench.sender.sent == []
    counted = bench.registry.get_sample_value
    assert counted("darkroom_callbacks_ended_total", {"outcome": "delivered"}) == 0
    assert counted("darkroom_image_put_tries_total", {"outcome": "taken"}) == 2


async def test_what_passes_is_tried_again_and_what_does_not_is_given_up(bench: Bench) -> None:
    bench.sender.put_outcomes = [FAILED, TAKEN, FORBIDDEN, FORBIDDEN]
    job_id = await ended(bench, callback_url=HOOK)
    await bench.deliver(job_id)
    first, second = await told(bench, job_id)
    assert first.put == PutResult(status=Status.COMPLETED)
    assert second.put == PutResult(status=Status.FAILED, message="the receiver answered 403")
    assert second.status is Status.COMPLETED  # the image itself is there
    assert bench.sender.bodies[0]["results"][1]["put"]["message"] == "the receiver answered 403"
    events = [*await bench.jobs.read(job_id), *await bench.deliveries.read(job_id)]
    assert "s3cret" not in " ".join(event.data.model_dump_json() for event in events)
    assert "s3cret" not in str(bench.sender.bodies)


async def test_a_bucket_that_is_down_holds_up_the_end_for_so_long_at_most(bench: Bench) -> None:
    bench.put_limits = {"delays_s": (0, 3600), "longest_s": 0.5}
    bench.sender.put_outcomes = [FAILED] * 9
    job_id = await ended(bench, callback_url=HOOK)
    await bench.deliver(job_id)
    assert bench.sender.sent == [HOOK]
    puts = [each.put for each in await told(bench, job_id)]
    assert {each and each.status for each in puts} == {Status.FAILED}
    assert "within 0.5 s after the end" in str(puts[1])


async def test_the_time_in_which_no_role_ran_is_not_counted_nor_that_the_job_failed(
    bench: Bench,
) -> None:
    failed = FailAttempt("a", "No room.", final=True)
    job_id = await ended(bench, images=1, end=failed, at=utc_now() - timedelta(hours=1))
    await bench.deliver(job_id)
    assert list(bench.sender.put_at) == URLS[:1]


async def test_a_role_that_starts_anew_puts_what_is_left(bench: Bench) -> None:
    bench.put_limits = {"delays_s": (0, 0.5)}
    bench.sender.put_outcomes = [TAKEN, FAILED]
    job_id = await ended(bench, callback_url=HOOK)
    async with bench.running():
        await eventually(lambda: bench.sender.put_outcomes == [])
    assert list(bench.sender.put_at) == URLS[:1]
    bench.registry = CollectorRegistry()
    await bench.deliver(job_id)
    assert list(bench.sender.put_at) == URLS[:2]
    assert bench.sender.sent == [HOOK]


async def test_the_hosts_of_the_key_are_asked_again(bench: Bench) -> None:
    limits = KeyLimits(callback_hosts=("hooks.example.com",))
    _, key = mint("alice", "test", [Scope.GENERATE], created_at=utc_now(), limits=limits)
    bench.keys = [replace(key, id="k1")]
    job_id = await ended(bench)
    await bench.deliver(job_id)
    assert bench.sender.put_at == {}
    puts = [each.put for each in await told(bench, job_id)]
    assert "may not use this callback host" in str(puts[0])


async def test_an_address_that_was_sealed_with_another_secret_is_given_up(bench: Bench) -> None:
    job_id = await ended(bench, images=1, secret=b"another secret")
    await bench.deliver(job_id)
    [only] = await told(bench, job_id)
    assert "secret of the service has changed" in str(only.put)
    assert bench.sender.put_at == {}


async def test_an_image_that_is_too_large_or_gone_is_not_put(bench: Bench) -> None:
    bench.put_limits = {"max_bytes": 1000}
    job_id = await ended(bench)
    await bench.images.delete(f"{job_id}/1/1.png")
    await bench.deliver(job_id)
    first, second = [each.put for each in await told(bench, job_id)]
    assert "more than 1000 bytes" in str(first)
    assert "not stored any more" in str(second)


async def test_slow_buckets_of_one_owner_hold_up_nobody_else(bench: Bench) -> None:
    bench.put_limits = {"in_flight": 4, "delays_s": (0, 0)}
    bench.limits = replace(bench.limits, in_flight=12, per_host=12)
    bench.sender.slow = "slow.png"
    slow = ["http://127.0.0.1/bucket/slow.png"]
    for _ in range(12):
        await ended(bench, urls=slow, images=1, end=Complete("a", images=1), owner="mallory")
    async with bench.running():
        await eventually(lambda: bench.sender.waiting == 2)
        other = await ended(bench, callback_url=HOOK)
        await eventually(lambda: bench.is_delivered(other))
        assert bench.sender.waiting == 2
    assert bench.sender.sent == [HOOK]


def test_an_owner_has_as_many_turns_as_are_left() -> None:
    turns = UploadPermits(4)
    with turns.take("a") as first, turns.take("a") as second, turns.take("a") as third:
        assert (first, second, third) == (True, True, False)
        with turns.take("b") as other, turns.take("c") as last, turns.take("d") as none:
            assert (other, last, none) == (True, True, False)
    with turns.take("a") as again:
        assert again
    with UploadPermits(1).take("a") as only:
        assert only


def test_those_without_a_turn_come_again_one_after_the_other() -> None:
    turns = UploadPermits(1, clock=lambda: 100.0)
    assert [turns.retry_after_s("a") for _ in range(101)] == pytest.approx(
        [1 + at / 100 for at in range(101)]
    )
    assert turns.retry_after_s("b") == 1


async def test_a_bucket_host_that_fails_for_one_owner_is_tried_for_others(bench: Bench) -> None:
    bench.put_limits = {"delays_s": (0,) * 9}
    bench.sender.put_outcomes = [FAILED] * bench.limits.breaker.failures
    broken = await ended(bench, owner="mallory")
    async with bench.running():
        await eventually(lambda: bench.sender.put_outcomes == [])
        other = await ended(bench)
        await eventually(lambda: bench.is_delivered(other))
        assert not await bench.is_delivered(broken)
