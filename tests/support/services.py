"""The HTTP edge on parts that live in memory or in one temporary folder."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from actors.callbacks.sample import SampleCallback
from actors.callbacks.secrets import SigningSecrets
from actors.callbacks.sender import Sender
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import NodeType
from engine.graph.models_folder import ModelsFolder
from engine.nodes import NODE_TYPES
from events.callback_address import AddressRule
from events.decisions import Command, Complete, Start, StoreImage
from events.job import Job, fold
from events.log import EventLog, JobWriter
from events.memory.log import MemoryLog
from events.store.database import Database
from events.store.endpoints import Endpoints
from events.store.keys import ApiKeys
from events.store.read_model import ReadModel
from events.store.records import Endpoint, Scope
from events.store.removal import Removal
from events.store.uploads import Uploads
from events.types import Flavour, ImageStored
from serve_app.access.api_keys import mint
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S
from serve_app.api import create_api
from serve_app.replica import Replica
from serve_app.services import Services
from settings.callbacks import CallbackSettings
from settings.settings import Settings
from storage.images import ImageStore
from storage.keys import file_key, file_name
from storage.tokens import url_for

CHECKPOINT = "tiny.safetensors"
ALL_SCOPES = (Scope.GENERATE, Scope.READ, Scope.CANCEL)
ACTOR = "job-actor-1"
URL = "http://darkroom.test"
SECRET = b"a secret for the tests"


@dataclass
class MemoryQueue:
    """A queue whose depth a test sets; it records what is taken out."""

    depths: Counter[str] = field(default_factory=Counter)
    removed: list[tuple[str, int, str]] = field(default_factory=list)
    error: Exception | None = None

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.removed.append((endpoint, lane, job_id))

    async def depth(self, endpoint: str) -> int:
        if self.error is not None:
            raise self.error
        return self.depths[endpoint]


@dataclass
class MemoryCallbackQueue:
    """Records what is parked, and until when."""

    parked: list[tuple[str, datetime]] = field(default_factory=list)

    async def park(self, job_id: str, until: datetime) -> None:
        self.parked.append((job_id, until))


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


@dataclass
class Edge:
    """The HTTP edge and everything behind it that a test may look at or change."""

    services: Services
    app: FastAPI
    log: EventLog
    queue: MemoryQueue
    callback_queue: MemoryCallbackQueue
    health: MemoryHealth
    name_server: NameServer
    progress: dict[str, float]

    async def key(
        self,
        owner: str = "alice",
        *,
        scopes: Sequence[Scope] = ALL_SCOPES,
        expires_at: datetime | None = None,
    ) -> str:
        """The text of a new key."""
        now = datetime.now(UTC)
        text, key = mint(owner, "test", scopes, created_at=now, expires_at=expires_at)
        await self.services.keys.add(key)
        return text

    async def client(self, owner: str = "alice", **options: Any) -> httpx.AsyncClient:
        return self.client_with(await self.key(owner, **options))

    def client_with(self, key: str | None) -> httpx.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=URL, headers=headers)

    async def job(self, job_id: str) -> Job:
        job = fold(await self.log.read(job_id))
        assert job is not None
        return job

    async def execute(self, job_id: str, command: Command) -> None:
        await self.services.writer.execute(command, await self.job(job_id))

    async def start(self, job_id: str) -> None:
        await self.execute(job_id, Start(actor=ACTOR, max_attempts=3, now=datetime.now(UTC)))

    async def store_image(
        self,
        job_id: str,
        *,
        index: int = 0,
        data: bytes = b"pixels",
        media_type: str | None = None,
    ) -> None:
        key = file_key(job_id, 1, file_name(index, media_type))
        await self.services.images.put(key, data)
        image = ImageStored(
            index=index,
            attempt=1,
            key=key,
            size_bytes=len(data),
            digest=f"sha256:{hashlib.sha256(data).hexdigest()}",
            width=64,
            height=64,
            seed=7,
            media_type=media_type,
        )
        await self.execute(job_id, StoreImage(actor=ACTOR, image=image))

    async def complete(self, job_id: str, *, images: int = 1) -> None:
        await self.execute(job_id, Complete(actor=ACTOR, images=images))

    async def run(self, job_id: str, *, images: int = 1) -> None:
        """What a job actor would do."""
        await self.start(job_id)
        for index in range(images):
            await self.store_image(job_id, index=index)
        await self.complete(job_id, images=images)

    async def project(self) -> None:
        """What `Results` would do: bring the read model up to the log."""
        read_model = self.services.read_model
        position = await read_model.checkpoint()
        async with self.log.reader(after=position) as reader:
            events = await reader.next(0.05)
        assert await read_model.apply(events, expected=position)


@asynccontextmanager
async def running_edge(
    folder: Path,
    *,
    log: EventLog | None = None,
    node_types: Sequence[NodeType] = NODE_TYPES,
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
    **settings: Any,
) -> AsyncGenerator[Edge]:
    """`settings` are those of the service; 127.0.0.0/8 is open to callbacks."""
    log = MemoryLog() if log is None else log
    database = Database(f"sqlite+aiosqlite:///{folder / 'darkroom.sqlite3'}")
    await database.prepare()
    queue, health, name_server = MemoryQueue(), MemoryHealth(), NameServer()
    progress: dict[str, float] = {}
    read_model, images = ReadModel(database), ImageStore((folder / "images").as_uri())
    deliveries, callback_queue = MemoryLog(), MemoryCallbackQueue()
    rule = AddressRule(allow_networks=[ip_network("127.0.0.0/8")])
    sender = Sender(rule, settings=CallbackSettings(timeout_s=1.0), resolve=name_server.resolve)
    keys = ApiKeys(database)
    sample = SampleCallback(
        sender=sender,
        secrets=SigningSecrets(keys, secret=SECRET, most=3),
        url_for=url_for(URL, SECRET),
    )
    given = Settings.load(**settings)
    services = Services(
        http_settings=given.http,
        graph_settings=given.graph,
        endpoint_settings=given.default_endpoint,
        dispatch_settings=given.dispatch,
        key_settings=given.keys,
        callback_settings=given.callbacks,
        secret=SECRET,
        url_for=url_for(URL, SECRET),
        log=log,
        writer=JobWriter(log),
        read_model=read_model,
        keys=keys,
        endpoints=Endpoints(database),
        uploads=Uploads(database),
        images=images,
        removal=Removal(log=log, deliveries=deliveries, images=images, read_model=read_model),
        catalogue=Catalogue(ModelsFolder(_models_folder(folder)), node_types),
        address_rule=rule,
        resolve=name_server.resolve,
        queue=queue,
        deliveries=deliveries,
        callback_queue=callback_queue,
        send_sample=sample.send,
        health=health,
        progress=progress.get,
    )
    await services.endpoints.add_missing(Endpoint(id="default"))
    app = create_api(Replica(services, open_jobs_period_s=open_jobs_period_s))
    async with app.router.lifespan_context(app):
        yield Edge(services, app, log, queue, callback_queue, health, name_server, progress)
    await sender.close()
    await database.close()


def _models_folder(folder: Path) -> Path:
    """A checkpoint that can be listed; nothing here reads it."""
    models = folder / "models"
    (models / "checkpoints").mkdir(parents=True)
    (models / "checkpoints" / CHECKPOINT).touch()
    return models


GENERATE_PATHS = {
    "/api/v1/workflow/generate": Flavour.WORKFLOW,
    "/workflow/v1/generate": Flavour.WORKFLOW,
    "/diffusion/v1/generate": Flavour.DIFFUSION,
    "/api/v1/diffusion/generate": Flavour.DIFFUSION,
}


def workflow_body(**sampling: Any) -> dict[str, Any]:
    """The node kinds and input names of the service document, section 2.3."""
    inputs = {
        "cfg": 8,
        "denoise": 1,
        "latent_image": ["5", 0],
        "model": ["4", 0],
        "negative": ["7", 0],
        "positive": ["6", 0],
        "sampler_name": "euler",
        "scheduler": "normal",
        "seed": 8566257,
        "steps": 20,
    }
    return {
        "prompt": {
            "3": {"class_type": "KSampler", "inputs": {**inputs, **sampling}},
            "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
            "5": {
                "class_type": "EmptyLatentImage",
                "inputs": {"batch_size": 1, "height": 512, "width": 512},
            },
            "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "a cat"}},
            "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": ""}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
            "9": {
                "class_type": "SaveImage",
                "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]},
            },
        }
    }


def diffusion_body(**parameters: Any) -> dict[str, Any]:
    """Every field of the service document, section 2.4."""
    return {
        "sd_model_checkpoint": CHECKPOINT,
        "prompt": "a cat",
        "negative_prompt": "",
        "width": 512,
        "height": 512,
        "sampler_name": "Euler",
        "scheduler": "Automatic",
        "steps": 20,
        "cfg_scale": 7.5,
        "batch_size": 1,
        "clip_skip": 1,
        "seed": -1,
        "override_settings": {"sd_model_checkpoint": CHECKPOINT},
        **parameters,
    }


def body_for(flavour: Flavour) -> dict[str, Any]:
    return workflow_body() if flavour is Flavour.WORKFLOW else diffusion_body()
