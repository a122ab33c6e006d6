"""What one job holds ends at most its own callback: those of others are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest

from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.role import Callbacks
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from events.decisions import Cancel, Submit
from events.delivery import fold_delivery
from events.delivery_policy import SendResult
from events.ids import new_id
from events.log import JobWriter
from events.memory.queues import MemoryCallbackQueue
from events.store.keys import ApiKeys
from events.types import CallbackExhausted
from settings.callbacks import CallbackSettings
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

SETTINGS = CallbackSettings()


class RecordingSender(Sender):
    """Every receiver takes what it is sent, but for those whose address says otherwise."""

    def __init__(self) -> None:
        super().__init__(AddressRule(allow_networks=[ip_network("127.0.0.0/8")]), settings=SETTINGS)
        self.sent: list[str] = []

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        if "hostile" in url:
            raise TypeError("nobody foresaw this")
        self.sent.append(url)
        return SendResult(status=200, latency_s=0.1)


class Bench:
    def __init__(self) -> None:
        self.jobs, self.deliveries = FailingLog(), FailingLog()
        self.queue = MemoryCallbackQueue()
        self.sender = RecordingSender()

    async def ended_job(self, url: str) -> str:
        job_id = new_id()
        writer = JobWriter(self.jobs)
        outcome = await writer.submit(job_id, Submit(submitted(callback_url=url)))
        assert outcome.job is not None
        await writer.execute(Cancel(), outcome.job)
        await self.queue.add(job_id)
        return job_id

    @asynccontextmanager
    async def others_are_sent(self, folder: Path) -> AsyncGenerator[None]:
        async with database_in(folder) as database:
            role = Callbacks(
                queue=self.queue,
                jobs=self.jobs,
                deliveries=self.deliveries,
                sender=self.sender,
                url_for=lambda job_id, image: "",
                secrets=SigningSecrets(ApiKeys(database), secret=b"0" * 16, most=1),
                allowed_hosts=AllowedHosts(ApiKeys(database), default=["*"]),
                settings=SETTINGS,
                hold_s=0.3,
            )
            task = asyncio.create_task(role.run())
            try:
                yield
                other = "http://127.0.0.1/other"
                await self.ended_job(other)
                await eventually(lambda: other in self.sender.sent)
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait({task})
                await self.sender.close()

    async def nothing_is_due(self) -> bool:
        return not await self.queue.job_ids()


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
