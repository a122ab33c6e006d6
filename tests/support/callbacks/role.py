"""The callbacks role on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
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
from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JetStreamCallbackQueue
from events.bus.streams import DELIVERIES, delivery_subject
from events.callback_address import AddressRule
from events.delivery import Delivery, fold_delivery
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, EventLog, utc_now
from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from events.types import Completed, Event, EventData, Started
from events.wire.callback_keys import ALONE, callback_key
from serve_app.local.nats_server import NatsServer
from settings.callbacks import CallbackSettings, ImagePutSettings
from storage.images import ImageStore
from storage.tokens import url_for
from telemetry.callback_metrics import CallbackMetrics
from tests.support.bus import connected
from tests.support.callbacks.receiver import Received
from tests.support.database import database_in
from tests.support.events import image, submitted
from tests.support.polling import eventually

SECRET = b"a secret of sixteen"
URL_FOR = url_for("http://images.example", SECRET)
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SETTINGS = CallbackSettings(delays_s=(0, 0.2, 0.2, 0.2), timeout_s=3.0)


@dataclass
class World:
    """A nats-server, its bus, and what the callbacks role works on."""

    server: NatsServer
    bus: Bus
    database: Database

    def __post_init__(self) -> None:
        self.keys = ApiKeys(self.database)
        self.queue = JetStreamCallbackQueue(self.bus)
        self.jobs = JetStreamLog(self.bus)
        self.deliveries = JetStreamLog(
            self.bus, stream=DELIVERIES, subject_of=delivery_subject, try_timeout_s=0.5
        )

    async def ended_job(
        self,
        callback_url: str | None,
        *,
        traceparent: str | None = TRACEPARENT,
        divided: bool = False,
        **changes: Any,
    ) -> str:
        """Store a completed job with one image, and put its callback on the queue.

        `divided`: in the part of its receiver, and not as older versions did.
        """
        job_id = new_id()
        first = submitted(callback_url=callback_url, **changes)
        events = (
            first,
            Started(attempt=1, actor="a"),
            image(0),
            Completed(images=1),
        )
        await self.store(self.jobs, job_id, *events, traceparent=traceparent)
        await self.queue.add(callback_key(job_id, first) if divided else job_id)
        return job_id

    @staticmethod
    async def store(
        log: EventLog, job_id: str, *events: EventData, traceparent: str | None = TRACEPARENT
    ) -> None:
        history = await log.read(job_id)
        position = history[-1].position if history else 0
        for version, data in enumerate(events, len(history) + 1):
            event = Event(
                id=new_id(),
                job_id=job_id,
                version=version,
                time=utc_now(),
                data=data,
                traceparent=traceparent,
            )
            outcome = await log.append(event, expected=position)
            assert isinstance(outcome, Appended)
            position = outcome.event.position

    async def delivery(self, job_id: str) -> Delivery:
        return fold_delivery(await self.deliveries.read(job_id))

    async def events(self, job_id: str) -> list[EventData]:
        return [event.data for event in await self.deliveries.read(job_id)]

    async def end(self, job_id: str) -> list[EventData]:
        """The delivery's events once it has ended and nothing of it is left on the queue."""
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
        settings: CallbackSettings = SETTINGS,
        rule: AddressRule | None = None,
        deliveries: EventLog | None = None,
        parts: Sequence[str] = ALONE,
    ) -> AsyncGenerator[None]:
        """Run the role until the end of the context."""
        loopback = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
        sender = Sender(rule or loopback, settings=settings)
        deliverer = Deliverer(
            queue=self.queue,
            jobs=self.jobs,
            deliveries=deliveries or self.deliveries,
            sender=sender,
            url_for=URL_FOR,
            secrets=SigningSecrets(self.keys, secret=SECRET, most=settings.secrets),
            allowed_hosts=AllowedHosts(self.keys, default=["*"]),
            image_puts=ImagePuts(
                sender, ImageStore("memory://"), secret=SECRET, settings=ImagePutSettings()
            ),
            settings=settings,
            metrics=CallbackMetrics(CollectorRegistry()),
        )
        role = Callbacks(self.queue, deliverer, settings=settings, parts=parts, hold_s=1.5)
        task = asyncio.create_task(role.run())
        try:
            yield
            assert not task.done(), "the role ended"
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
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


@asynccontextmanager
async def running_world(folder: Path) -> AsyncGenerator[World]:
    server = NatsServer(folder / "nats", preferred_port=0)
    server.start()
    async with database_in(folder) as database, connected(server) as bus:
        yield World(server, bus, database)
    server.stop()
