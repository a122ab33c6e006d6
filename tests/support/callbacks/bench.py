"""The callbacks role over the logs and the queue in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_network
from typing import Any

from prometheus_client import CollectorRegistry

from actors.callbacks.api_key_data import AllowedHosts, SigningSecrets
from actors.callbacks.deliverer import Deliverer, DeliveryLimits
from actors.callbacks.presigned_uploads import PresignedUploads
from actors.callbacks.sender import Sender
from actors.roles.callbacks import Callbacks
from events.callback_address import AddressRule
from events.decisions import Cancel, Submit
from events.delivery import SendResult, fold_delivery
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.store.keys import ApiKeys
from events.store.records import ApiKey
from events.types import CallbackAttempted
from storage.images import ImageStore
from telemetry.callback_metrics import CallbackMetrics
from tests.support.database import temporary_database
from tests.support.events import submitted
from tests.support.failing_log import FailingLog
from tests.support.memory.queues import MemoryCallbackQueue
from tests.support.polling import eventually, running

SECRET = b"0" * 16
TAKEN = SendResult(status=200, latency_s=0.1)
LIMITS = DeliveryLimits(max_errors=3, delays_s=(0, 0.5, 3600), jitter=0)


class RecordingSender(Sender):
    """A sender whose receivers accept everything, except those whose address says otherwise."""

    def __init__(self) -> None:
        super().__init__(AddressRule(allow_networks=[ip_network("127.0.0.0/8")]))
        self.sent: list[str] = []
        self.told: list[str] = []
        """The ids of the sent callbacks, as they are on the wire."""
        self.bodies: list[dict[str, Any]] = []
        self.outcomes: list[SendResult | Exception] = []
        """The outcomes of the next attempts, in order."""
        self.put_at: dict[str, tuple[bytes, Mapping[str, str]]] = {}
        """The uploaded files with their headers, by address."""
        self.put_outcomes: list[SendResult] = []
        """The outcomes of the next uploads, as `outcomes`; a failed file is not stored."""
        self.slow: str | None = None
        """Addresses with this ending never answer."""
        self.waiting = 0
        """The number of such requests that are in progress."""

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
        if self.slow and url.endswith(self.slow):
            self.waiting += 1
            await asyncio.Event().wait()
        data = b"".join([part async for part in content])
        outcome = self.put_outcomes.pop(0) if self.put_outcomes else TAKEN
        if outcome.is_accepted:
            self.put_at[url] = data, headers
        return outcome


class Bench:
    def __init__(self, queue: MemoryCallbackQueue | None = None) -> None:
        self.jobs, self.deliveries = FailingLog(), FailingLog()
        self.queue = queue or MemoryCallbackQueue()
        self.sender = RecordingSender()
        self.limits = LIMITS
        self.put_limits: dict[str, Any] = {"delays_s": (0, 0)}
        self.images = ImageStore("memory://")
        self.keys: list[ApiKey] = []
        """The keys in the database."""
        self.registry = CollectorRegistry()
        """The registry of the metrics."""
        self.on_attempt: Callable[[Job, SendResult], None] = lambda _job, _result: None

    async def ended_job(self, url: str) -> str:
        job_id = new_id()
        writer = JobWriter(self.jobs)
        outcome = await writer.submit(job_id, Submit(submitted(callback_url=url)))
        assert outcome.job is not None
        await writer.execute(Cancel(), outcome.job)
        await self.queue.add(job_id)
        return job_id

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        async with temporary_database() as database:
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
                presigned_uploads=PresignedUploads(
                    self.sender, self.images, secret=SECRET, **self.put_limits
                ),
                limits=self.limits,
                metrics=CallbackMetrics(self.registry, on_attempt=self.on_attempt),
            )
            role = Callbacks(self.queue, deliverer, ack_wait_s=0.3)
            async with running(role.run()):
                yield
            await self.sender.close()

    @asynccontextmanager
    async def others_are_sent(self) -> AsyncGenerator[None]:
        async with self.running():
            yield
            other = "http://127.0.0.1/other"
            await self.ended_job(other)
            await eventually(lambda: other in self.sender.sent)

    async def deliver(self, job_id: str) -> None:
        """Run the role until the callback is delivered."""
        async with self.running():
            await eventually(lambda: self.is_delivered(job_id))

    async def attempts(self, job_id: str) -> int:
        events = await self.deliveries.read(job_id)
        return sum(isinstance(event.data, CallbackAttempted) for event in events)

    async def is_delivered(self, job_id: str) -> bool:
        """Whether the callback is delivered and has no entry on the queue."""
        delivery = fold_delivery(await self.deliveries.read(job_id))
        return delivery.delivered and job_id not in await self.queue.job_ids()

    async def nothing_is_due(self) -> bool:
        return not await self.queue.job_ids()
