"""The services of an HTTP edge, in memory or in one temporary folder."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from actors.archiving import open_archive
from actors.assembly import default_endpoint
from actors.callbacks.sample import SampleCallback
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType
from engine.graph.models_folder import ModelsFolder
from events.callback_address import AddressRule
from events.errors import FetchFailed
from events.memory.log import MemoryLog
from events.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from events.store.adapters.key_options import KeyOptions
from events.store.adapters.user_files import UserFiles
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from events.streams.contents import LogContents
from events.streams.log_streams import LogStreams
from events.wire.progress import JobProgress
from serve_app.services import Services
from settings.callbacks import CallbackSettings
from settings.http import AdapterSettings
from settings.settings import Settings
from storage.images import ImageStore
from storage.tokens import url_for
from tests.support.generate_bodies import CHECKPOINT
from tests.support.live.memory_streams import contents_of

URL = "http://darkroom.test"
SECRET = b"a secret for the tests"
URL_FOR = url_for(URL, SECRET)
RULE = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
"""127.0.0.0/8 is open to callbacks."""


class RecordingJobQueue(MemoryJobQueue):
    """Records what is removed; fails where a test sets `error`."""

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
    """Records each delivery that is parked, by its key, and until when."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[str, datetime]] = []

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        self.recorded.append((key, until))
        await super().park(key, until, line=line)


@dataclass
class MemoryHealth:
    """A log that is as full and as ready as a test says."""

    full: float = 0.0
    reason: str | None = None

    async def fill(self) -> float:
        return self.full

    async def ready(self) -> str | None:
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
    """What jobs are said to have done, by their ids."""

    def __init__(self) -> None:
        super().__init__()
        self.listeners: list[Callable[[str, JobProgress], None]] = []
        self.watched: Counter[str | None] = Counter()
        """How many watch each job; None: all jobs."""

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
        """What a job actor does while it runs. What nobody watches is not heard."""
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
    """What the dispatcher says of endpoints, by id."""

    pictures: dict[str, bytes | Exception] = field(default_factory=dict)
    """What there is at the URLs of images."""
    hanging: set[str] = field(default_factory=set)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    fetched: list[str] = field(default_factory=list)

    said_metrics: list[bytes] = field(default_factory=list)
    """What other processes say of themselves."""

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
    def log_contents(self) -> LogContents:
        return contents_of(self.log)

    async def endpoint_status(self, endpoint: str) -> dict[str, Any] | None:
        return self.statuses.get(endpoint)


@asynccontextmanager
async def memory_services(
    folder: Path, parts: MemoryParts, settings: Settings, *, node_types: Sequence[NodeType]
) -> AsyncGenerator[Services]:
    sender = Sender(
        RULE, settings=CallbackSettings(timeout_s=1.0), resolve=parts.name_server.resolve
    )
    database = Database(f"sqlite+aiosqlite:///{folder / 'darkroom.sqlite3'}")
    await database.prepare()
    yield _services(
        parts,
        settings,
        database,
        sender=sender,
        images=ImageStore((folder / "images").as_uri()),
        catalogue=Catalogue(ModelsFolder(_models_folder(folder)), node_types),
    )
    await sender.close()
    await database.close()


def _services(
    parts: MemoryParts,
    settings: Settings,
    database: Database,
    sender: Sender,
    images: ImageStore,
    catalogue: Catalogue,
) -> Services:
    deliveries, keys = MemoryLog(), ApiKeys(database)
    read_model = ReadModel(database, streams=LogStreams(len(parts.log.parts)))
    archiving = open_archive(database, images)
    return Services(
        **_groups(settings),
        default_endpoint=default_endpoint(settings.default_endpoint),
        fetch=parts.fetch,
        secret=SECRET,
        url_for=URL_FOR,
        read_model=read_model,
        keys=keys,
        endpoints=Endpoints(database),
        uploads=Uploads(database),
        user_files=_user_files(settings.adapters, database),
        key_options=KeyOptions(database),
        images=images,
        removal=archiving.removal(images, read_model, log=parts.log, deliveries=deliveries),
        history=archiving.history(log=parts.log, deliveries=deliveries),
        log_contents=parts.log_contents,
        hot_jobs=archiving.hot_jobs,
        catalogue=catalogue,
        address_rule=RULE,
        resolve=parts.name_server.resolve,
        queue=parts.queue,
        callback_queue=parts.callback_queue,
        send_sample=_sample_callback(keys, sender).send,
        health=parts.health,
        endpoint_status=parts.endpoint_status,
        progress=parts.progress,
    )


def _user_files(settings: AdapterSettings, database: Database) -> UserFiles:
    return UserFiles(database, max_files=settings.max_user_files, max_bytes=settings.max_user_bytes)


def _groups(settings: Settings) -> dict[str, Any]:
    return {
        "http_settings": settings.http,
        "adapter_settings": settings.adapters,
        "graph_settings": settings.graph,
        "dispatch_settings": settings.dispatch,
        "key_settings": settings.keys,
        "owner_settings": settings.owners,
        "callback_settings": settings.callbacks,
        "image_put_settings": settings.image_puts,
        "retention_settings": settings.retention,
        "fetch_settings": settings.fetch,
    }


def _models_folder(folder: Path) -> Path:
    """A checkpoint that can be listed; nothing here reads it."""
    models = folder / "models"
    (models / "checkpoints").mkdir(parents=True)
    (models / "checkpoints" / CHECKPOINT).touch()
    return models


def _sample_callback(keys: ApiKeys, sender: Sender) -> SampleCallback:
    signing = SigningSecrets(keys, secret=SECRET, most=3)
    return SampleCallback(sender=sender, secrets=signing, url_for=URL_FOR)
