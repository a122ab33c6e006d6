"""The callbacks role over the logs and the queue in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from actors.callbacks.allowed_hosts import AllowedHosts
from actors.callbacks.deliverer import Deliverer
from actors.callbacks.image_puts import ImagePuts
from actors.callbacks.role import Callbacks
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from events.callback_address import AddressRule
from events.decisions import Cancel, Submit
from events.delivery import fold_delivery
from events.delivery_policy import SendResult
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.memory.queues import MemoryCallbackQueue
from events.store.keys import ApiKeys
from events.store.records import ApiKey
from events.types import CallbackAttempted
from settings.callbacks import CallbackSettings, ImagePutSettings
from storage.images import ImageStore
from telemetry.callback_metrics import CallbackMetrics
from tests.support.database import database_in
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually

SECRET = b"0" * 16
TAKEN = SendResult(status=200, latency_s=0.1)
SETTINGS = CallbackSettings(max_errors=3, delays_s=(0, 0.5, 3600), jitter=0)


class RecordingSender(Sender):
    """Every receiver takes what it is sent, but for those whose address says otherwise."""

    def __init__(self) -> None:
        super().__init__(AddressRule(allow_networks=[ip_network("127.0.0.0/8")]), settings=SETTINGS)
        self.sent: list[str] = []
        self.told: list[str] = []
        """The ids of what was sent, as they are on the wire."""
        self.bodies: list[dict[str, Any]] = []
        self.outcomes: list[SendResult | Exception] = []
        """What the next tries come to, one after the other."""
        self.put_at: dict[str, tuple[bytes, Mapping[str, str]]] = {}
        """What was put, by its address, with its headers."""
        self.put_outcomes: list[SendResult] = []
        """As `outcomes`; what fails is not put."""
        self.hanging: set[str] = set()
        """Addresses whose receivers take what is put, and answer when `answers` is set."""
        self.answers = asyncio.Event()
        self.begun: set[str] = set()
        """Where something was begun to be put."""

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> SendResult:
        if "hostile" in url:
            raise TypeError("nobody foresaw this")
        self.sent.append(url)
        self.told.append(headers["webhook-id"])
        self.bodies.append(json.loads(body))
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        return TAKEN

    async def put(
        self,
        url: str,
        content: AsyncIterator[bytes],
        headers: Mapping[str, str],
        *,
        timeout_s: float,
    ) -> SendResult:
        assert timeout_s
        self.begun.add(url)
        if url in self.hanging:
            await self.answers.wait()
        data = b"".join([part async for part in content])
        outcome = self.put_outcomes.pop(0) if self.put_outcomes else TAKEN
        if outcome.is_taken:
            self.put_at[url] = data, headers
        return outcome


class Bench:
    def __init__(self, queue: MemoryCallbackQueue | None = None) -> None:
        self.jobs, self.deliveries = FailingLog(), FailingLog()
        self.queue = queue or MemoryCallbackQueue()
        self.sender = RecordingSender()
        self.settings = SETTINGS
        self.put_settings = ImagePutSettings(delays_s=(0, 0))
        self.images = ImageStore("memory://")
        self.keys: list[ApiKey] = []
        """The database has these."""
        self.registry = CollectorRegistry()
        """Of the metrics."""
        self.on_try: Callable[[Job, SendResult], None] = lambda _job, _result: None

    async def ended_job(self, url: str) -> str:
        job_id = new_id()
        writer = JobWriter(self.jobs)
        outcome = await writer.submit(job_id, Submit(submitted(callback_url=url)))
        assert outcome.job is not None
        await writer.execute(Cancel(), outcome.job)
        await self.queue.add(job_id)
        return job_id

    @asynccontextmanager
    async def running(self, folder: Path) -> AsyncGenerator[None]:
        async with database_in(folder) as database:
            for key in self.keys:
                await ApiKeys(database).add(key)
            deliverer = Deliverer(
                queue=self.queue,
                jobs=self.jobs,
                deliveries=self.deliveries,
                sender=self.sender,
                url_for=lambda job_id, image: "",
                secrets=SigningSecrets(ApiKeys(database), secret=SECRET, most=1),
                allowed_hosts=AllowedHosts(ApiKeys(database), default=["*"]),
                image_puts=ImagePuts(
                    self.sender, self.images, secret=SECRET, settings=self.put_settings
                ),
                settings=self.settings,
                metrics=CallbackMetrics(self.registry, on_try=self.on_try),
            )
            role = Callbacks(self.queue, deliverer, settings=self.settings, hold_s=0.3)
            task = asyncio.create_task(role.run())
            try:
                yield
                assert not task.done()
            finally:
                task.cancel()
                await asyncio.wait({task})
                await self.sender.close()

    @asynccontextmanager
    async def others_are_sent(self, folder: Path) -> AsyncGenerator[None]:
        async with self.running(folder):
            yield
            other = "http://127.0.0.1/other"
            await self.ended_job(other)
            await eventually(lambda: other in self.sender.sent)

    async def tries(self, job_id: str) -> int:
        events = await self.deliveries.read(job_id)
        return sum(isinstance(event.data, CallbackAttempted) for event in events)

    async def is_delivered(self, job_id: str) -> bool:
        """Whether it is, and nothing of it is left on the queue."""
        delivery = fold_delivery(await self.deliveries.read(job_id))
        return delivery.delivered and job_id not in await self.queue.job_ids()

    async def nothing_is_due(self) -> bool:
        return not await self.queue.job_ids()
