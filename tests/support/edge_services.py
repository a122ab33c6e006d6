"""The services of the HTTP API, in memory or in one temporary folder."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpcore
import numpy as np
from fastapi import FastAPI
from safetensors.numpy import save_file

from actors.callbacks.api_key_data import SigningSecrets
from actors.callbacks.sample import SampleCallback
from actors.callbacks.sender import Sender
from actors.connections import open_history, open_removal
from actors.worker.config import configured_endpoints
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType
from engine.graph.models_folder import ModelsFolder
from events.callback_address import AddressRule, Resolve
from events.errors import FetchFailed
from events.history import History
from events.job_progress import JobProgress
from events.log import EventLog, JobWriter
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from serve_app.api import create_api
from serve_app.assembly import Backends, assemble
from serve_app.replica import Replica
from settings.settings import Settings
from storage.images import ImageStore
from storage.service_secret import url_for
from tests.support.database import database_in
from tests.support.generate_bodies import CHECKPOINT
from tests.support.memory.contents import MemoryLogContents
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryCallbackQueue, MemoryJobQueue

URL = "http://darkroom.test"
SECRET = b"a secret for the tests"
URL_FOR = url_for(URL, SECRET)
RULE = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
"""A rule that allows callbacks to 127.0.0.0/8."""


class RecordingJobQueue(MemoryJobQueue):
    """A queue that records removed entries and fails if a test sets `error`."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[tuple[str, int, str]] = []
        self.error: Exception | None = None

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.removed.append((endpoint, lane, job_id))
        await super().remove(endpoint, lane, job_id)

    async def depth(self, endpoint: str) -> int:
        if self.error is not None:
            raise self.error
        return await super().depth(endpoint)


class RecordingCallbackQueue(MemoryCallbackQueue):
    """A queue that records until when each delivery is parked, by its key."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[str, datetime]] = []

    async def park(self, key: str, until: datetime, *, receiver: str | None = None) -> None:
        self.recorded.append((key, until))
        await super().park(key, until, receiver=receiver)


_SD1 = ("model.diffusion_model.x", "first_stage_model.x", "cond_stage_model.transformer.x")
"""Names of tensors by which a checkpoint is recognised as Stable Diffusion 1."""


@dataclass
class MemoryHealth:
    """The fill and readiness of a log, as a test sets them."""

    full: float = 0.0
    reason: str | None = None

    async def fill(self) -> float:
        return self.full

    async def ready(self) -> str | None:
        return self.reason

    async def known_refusal(self) -> str | None:
        return self.reason


@dataclass
class NameServer:
    """Host names and their addresses."""

    answers: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def resolve(self, host: str) -> Sequence[str]:
        if host not in self.answers:
            raise OSError(f"no such host: {host}")
        return self.answers[host]


class MemoryProgress(dict[str, JobProgress]):
    """The progress of jobs, by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[str, JobProgress], None]] = []
        self.watched: Counter[str | None] = Counter()
        """The number of watchers of each job; None stands for all jobs."""

    @contextmanager
    def watching(self, job_id: str | None = None) -> Generator[None]:
        self.watched[job_id] += 1
        try:
            yield
        finally:
            self.watched[job_id] -= 1

    async def run(self) -> None:
        pass

    def tell(self, job_id: str, progress: JobProgress) -> None:
        """Report progress as a running job actor does. Without watchers it is lost."""
        self[job_id] = progress
        if self.watched[job_id] or self.watched[None]:
            for listener in self.listeners:
                listener(job_id, progress)


@dataclass(kw_only=True)
class MemoryParts:
    """The parts behind the services that a test may look at or change."""

    log: MemoryLog
    queue: RecordingJobQueue = field(default_factory=RecordingJobQueue)
    callback_queue: RecordingCallbackQueue = field(default_factory=RecordingCallbackQueue)
    health: MemoryHealth = field(default_factory=MemoryHealth)
    name_server: NameServer = field(default_factory=NameServer)
    progress: MemoryProgress = field(default_factory=MemoryProgress)
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The dispatcher's status of endpoints, by id."""

    pictures: dict[str, bytes | Exception] = field(default_factory=dict)
    """The content at the URLs of images."""
    hanging: set[str] = field(default_factory=set)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    fetched: list[str] = field(default_factory=list)

    said_metrics: list[bytes] = field(default_factory=list)
    """The metrics that other processes report."""

    async def fetch(self, url: str, *, timeout_s: float) -> bytes:
        self.fetched.append(url)
        if url in self.hanging:
            self.hangs.set()
            await asyncio.Event().wait()
        found = self.pictures.get(url, FetchFailed("its server answered 404"))
        if isinstance(found, Exception):
            raise found
        return found

    async def ask_metrics(self) -> list[bytes]:
        return list(self.said_metrics)

    @property
    def log_contents(self) -> MemoryLogContents:
        return MemoryLogContents(self.log)

    async def endpoint_status(self, endpoint: str) -> dict[str, Any] | None:
        return self.statuses.get(endpoint)


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of a replica and the stores behind them."""

    settings: Settings
    backends: Backends
    secret: bytes = SECRET

    def replica(self, **options: Any) -> Replica:
        """Another replica on the same stores. `options` are those of `assemble`."""
        configured = configured_endpoints(self.settings)
        return assemble(
            self.settings, self.backends, secret=SECRET, configured=configured, **options
        )

    def app(self, *, is_in_serve: bool = False, **options: Any) -> FastAPI:
        """The API of another replica."""
        return create_api(
            self.replica(**options),
            http=self.settings.http,
            protocol_settings=self.settings.protocols,
            is_in_serve=is_in_serve,
        )

    def with_resolver(self, resolve: Resolve) -> Services:
        return replace(self, backends=replace(self.backends, resolve=resolve))

    @property
    def read_model(self) -> ReadModel:
        return ReadModel(self.backends.database)

    @property
    def keys(self) -> ApiKeys:
        return ApiKeys(self.backends.database)

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self.backends.database)

    @property
    def uploads(self) -> Uploads:
        return Uploads(self.backends.database)

    @property
    def images(self) -> ImageStore:
        return self.backends.images

    @property
    def removal(self) -> Removal:
        return self.backends.removal

    @property
    def history(self) -> History:
        return self.backends.history

    @property
    def log(self) -> EventLog:
        return self.backends.history.log

    @property
    def deliveries(self) -> EventLog:
        return self.backends.history.delivery_log

    @property
    def writer(self) -> JobWriter:
        return JobWriter(self.log)


@asynccontextmanager
async def memory_services(
    folder: Path, parts: MemoryParts, settings: Settings, *, node_types: Sequence[NodeType]
) -> AsyncGenerator[Services]:
    sender = Sender(
        RULE, timeout_s=1.0, resolve=parts.name_server.resolve, ssl_context=_ssl_context()
    )
    async with database_in(folder) as database:
        images, deliveries = ImageStore((folder / "images").as_uri()), MemoryLog()
        yield Services(
            settings=settings,
            backends=Backends(
                database=database,
                images=images,
                removal=open_removal(
                    database, images, ReadModel(database), log=parts.log, deliveries=deliveries
                ),
                history=open_history(database, images, log=parts.log, deliveries=deliveries),
                log_contents=parts.log_contents,
                queue=parts.queue,
                callback_queue=parts.callback_queue,
                health=parts.health,
                progress=parts.progress,
                endpoint_status=parts.endpoint_status,
                ask_metrics=parts.ask_metrics,
                catalogue=Catalogue(ModelsFolder(_models_folder(folder)), node_types),
                address_rule=RULE,
                resolve=parts.name_server.resolve,
                fetch=parts.fetch,
                send_sample=_sample_callback(ApiKeys(database), sender).send,
                url_for=URL_FOR,
            ),
        )
    await sender.close()


@cache
def _ssl_context() -> ssl.SSLContext:
    """Read the certificates of the system once: that takes 30 ms."""
    return httpcore.default_ssl_context()


def _models_folder(folder: Path) -> Path:
    """Create a folder with a checkpoint of which only the header is read."""
    models = folder / "models"
    (models / "checkpoints").mkdir(parents=True)
    save_file({key: np.zeros(1, np.float16) for key in _SD1}, models / "checkpoints" / CHECKPOINT)
    return models


def _sample_callback(keys: ApiKeys, sender: Sender) -> SampleCallback:
    signing = SigningSecrets(keys, secret=SECRET, most=3)
    return SampleCallback(sender=sender, secrets=signing, url_for=URL_FOR)
