"""The callbacks role on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from actors.callbacks.api_key_data import AllowedHosts, SigningSecrets
from actors.callbacks.deliverer import Deliverer, DeliveryLimits
from actors.callbacks.presigned_uploads import PresignedUploads
from actors.callbacks.sender import Sender
from actors.roles.callbacks import Callbacks
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import CallbackQueue
from events.bus.streams import DELIVERIES, delivery_subject
from events.callback_address import CONNECT_TIMEOUT_S, AddressRule
from events.delivery import Delivery, fold_delivery
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import EventLog, utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from events.types import Completed, EventData, Started
from local.nats_server import NatsServer
from storage.images import ImageStore
from storage.service_secret import url_for
from telemetry.callback_metrics import CallbackMetrics
from tests.support.callbacks.receiver import LOOPBACK, Received
from tests.support.events import appended, image, new_event, submitted
from tests.support.polling import eventually, running

SECRET = b"a secret of sixteen"
URL_FOR = url_for("http://images.example", SECRET)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LIMITS = DeliveryLimits(delays_s=(0, 0.2, 0.2, 0.2))
TIMEOUT_S = 3.0


@dataclass
class World:
    """A nats-server, its bus, and the stores of the callbacks role."""

    server: NatsServer
    bus: Bus
    database: Database

    def __post_init__(self) -> None:
        self.keys = ApiKeys(self.database)
        self.queue = CallbackQueue(self.bus)
        self.jobs = JetStreamLog(self.bus)
        self.deliveries = JetStreamLog(
            self.bus, stream=DELIVERIES, subject_of=delivery_subject, try_timeout_s=0.5
        )

    async def ended_job(
        self,
        callback_url: str | None,
        *,
        traceparent: str | None = TRACEPARENT,
        **changes: Any,
    ) -> str:
        """Store a completed job with one image, and put its callback on the queue."""
        job_id = new_id()
        first = submitted(callback_url=callback_url, **changes)
        run = (Started(attempt=1, actor="a"), image(0), Completed(images=1))
        await self.store(self.jobs, job_id, first, *run, traceparent=traceparent)
        await self.queue.add(job_id)
        return job_id

    @staticmethod
    async def store(
        log: EventLog, job_id: str, *events: EventData, traceparent: str | None = TRACEPARENT
    ) -> None:
        history = await log.read(job_id)
        position = history[-1].position if history else 0
        for version, data in enumerate(events, len(history) + 1):
            event = new_event(job_id, version, data, traceparent=traceparent)
            position = (await appended(log, event, position)).position

    async def delivery(self, job_id: str) -> Delivery:
        return fold_delivery(await self.deliveries.read(job_id))

    async def events(self, job_id: str) -> list[EventData]:
        return [event.data for event in await self.deliveries.read(job_id)]

    async def end(self, job_id: str) -> list[EventData]:
        """Return the delivery's events once it has ended and has no entry on the queue."""
        await eventually(lambda: self._is_over(job_id))
        return await self.events(job_id)

    async def _is_over(self, job_id: str) -> bool:
        with suppress(LogUnavailable):
            return (await self.delivery(job_id)).ended and job_id not in await self.queue.job_ids()
        return False

    @asynccontextmanager
    async def callbacks(
        self,
        *,
        limits: DeliveryLimits = LIMITS,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        rule: AddressRule | None = None,
        deliveries: EventLog | None = None,
    ) -> AsyncGenerator[None]:
        """Run the role until the end of the context."""
        sender = Sender(rule or LOOPBACK, timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        deliverer = Deliverer(
            queue=self.queue,
            jobs=self.jobs,
            deliveries=deliveries or self.deliveries,
            sender=sender,
            url_for=URL_FOR,
            secrets=SigningSecrets(self.keys, secret=SECRET),
            allowed_hosts=AllowedHosts(self.keys, default=["*"]),
            presigned_uploads=PresignedUploads(sender, ImageStore("memory://"), secret=SECRET),
            limits=limits,
            metrics=CallbackMetrics(CollectorRegistry()),
        )
        role = Callbacks(self.queue, deliverer, ack_wait_s=1.5)
        async with running(role.run()):
            yield
        await sender.close()


def api_key(id: str, owner: str, **changes: Any) -> ApiKey:
    values: dict[str, Any] = {
        "id": id,
        "owner": owner,
        "name": "test",
        "secret_sha256": "0",
        "scopes": frozenset({Scope.GENERATE}),
        "created_at": utc_now() - timedelta(days=1),
    }
    return ApiKey(**(values | changes))


def ids(received: list[Received]) -> list[str]:
    return [request.headers["webhook-id"] for request in received]
