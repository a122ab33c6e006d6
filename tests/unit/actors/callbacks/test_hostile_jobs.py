"""What one job holds ends at most its own callback: those of others are sent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from events.delivery import fold_delivery
from events.types import CallbackExhausted
from tests.support.callbacks.bench import Bench
from tests.support.polling import eventually


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_callback_that_cannot_be_made_is_given_up(bench: Bench, tmp_path: Path) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/hostile")
    async with bench.others_are_sent(tmp_path):
        await eventually(bench.nothing_is_due)
    *_, last = await bench.deliveries.read(job_id)
    assert isinstance(last.data, CallbackExhausted)
    assert "TypeError" in last.data.message


@pytest.mark.parametrize("url", ["", "not a url", "http://[::1", "http://\x00/", "ftp://x/"])
async def test_an_address_of_any_form_comes_to_an_end(
    bench: Bench, tmp_path: Path, url: str
) -> None:
    job_id = await bench.ended_job(url)
    async with bench.others_are_sent(tmp_path):
        await eventually(bench.nothing_is_due)
    assert fold_delivery(await bench.deliveries.read(job_id)).ended


@pytest.mark.parametrize("logs", [("jobs",), ("deliveries",), ("jobs", "deliveries")])
async def test_a_job_that_cannot_be_read_leaves_the_queue(
    bench: Bench, tmp_path: Path, logs: Sequence[str]
) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/")
    for log in logs:
        getattr(bench, log).unreadable.add(job_id)
    async with bench.others_are_sent(tmp_path):
        await eventually(bench.nothing_is_due)


@pytest.mark.parametrize("log", ["jobs", "deliveries"])
async def test_a_callback_of_a_later_version_waits_for_it(
    bench: Bench, tmp_path: Path, log: str
) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/")
    getattr(bench, log).of_later_version.add(job_id)
    async with bench.others_are_sent(tmp_path):
        await eventually(lambda: job_id in bench.queue.parked)
    assert await bench.queue.job_ids() == {job_id}
    assert bench.sender.sent == ["http://127.0.0.1/other"]
