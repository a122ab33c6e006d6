from __future__ import annotations

import asyncio

from benchmarks.harness.load import End, offer


async def test_a_job_that_does_not_end_keeps_no_other_from_being_sent() -> None:
    """With a loop that waits for each answer the third would never come."""
    all_sent, sent = asyncio.Event(), list[int]()

    async def run(number: int) -> End:
        sent.append(number)
        if len(sent) == 3:
            all_sent.set()
        await all_sent.wait()
        return End()

    load = await offer([0.0, 0.0, 0.0], run)
    assert sent == [0, 1, 2]
    assert [each.intended_s for each in load.samples] == [0.0, 0.0, 0.0]


async def test_what_a_job_tells_is_kept_with_its_times() -> None:
    async def run(number: int) -> End:
        return End(number > 0, {"denoise": 5.0}, 4.0)

    load = await offer([0.0, 0.001], run, time_s=2.0)
    assert load.failed == 1
    assert load.rows_per_call() == 4.0
    assert load.stage_ms()["denoise"] == 5.0
    assert load.time_s == 2.0
    assert all(each.intended_s <= each.sent_s <= each.ended_s for each in load.samples)


async def test_the_time_of_jobs_that_come_at_once_is_that_until_the_last_end() -> None:
    gate = asyncio.Event()

    async def run(number: int) -> End:
        if number == 1:
            gate.set()
        await gate.wait()
        return End()

    load = await offer([0.0] * 2, run)
    assert load.time_s >= max(each.ended_s for each in load.samples)
