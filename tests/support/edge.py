"""The HTTP edge on parts that live in memory or in one temporary folder."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from engine.graph.declarations import NodeType
from engine.nodes import NODE_TYPES
from events.decisions import Command, Complete, Start, StoreImage
from events.job import Job, fold
from events.memory.log import MemoryLog
from events.store.records import Endpoint, Scope
from events.types import ImageStored
from serve_app.access.api_keys import mint
from serve_app.access.open_jobs import OPEN_JOBS_PERIOD_S
from serve_app.api import create_api
from serve_app.replica import Replica
from serve_app.services import Services
from settings.settings import Settings
from storage.keys import file_key, file_name
from tests.support.edge_services import URL, MemoryParts, memory_services

ALL_SCOPES = (Scope.GENERATE, Scope.READ, Scope.CANCEL)
ACTOR = "job-actor-1"


@dataclass(kw_only=True)
class Edge(MemoryParts):
    """The HTTP edge and everything behind it that a test may look at or change."""

    services: Services
    app: FastAPI

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

    def example(self, method: str, path: str) -> Any:
        """That of a body in the OpenAPI document, whose schema allows it."""
        document = self.app.openapi()
        content = document["paths"][path][method]["requestBody"]["content"]["application/json"]
        schema = content["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(content["example"])
        return content["example"]

    async def job(self, job_id: str) -> Job:
        job = fold(await self.log.read(job_id))
        assert job is not None
        return job

    async def execute(self, job_id: str, command: Command) -> None:
        await self.services.writer.execute(command, await self.job(job_id))

    async def start(self, job_id: str) -> None:
        await self.execute(
            job_id, Start(actor=ACTOR, max_attempts=3, max_attempts_total=9, now=datetime.now(UTC))
        )

    async def store_image(
        self,
        job_id: str,
        *,
        index: int = 0,
        data: bytes = b"pixels",
        media_type: str | None = None,
        node: str | None = None,
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
            node=node,
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


def lasting_headers(answer: httpx.Response) -> dict[str, str]:
    """Without those that each request has of its own."""
    own = {"ratelimit", "ratelimit-policy", "x-request-id"}
    return {name: value for name, value in answer.headers.items() if name not in own}


@asynccontextmanager
async def running_edge(
    folder: Path,
    *,
    log: MemoryLog | None = None,
    node_types: Sequence[NodeType] = NODE_TYPES,
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
    **settings: Any,
) -> AsyncGenerator[Edge]:
    """`settings` are those of the service; it has one endpoint, `default`."""
    parts = MemoryParts(log=MemoryLog() if log is None else log)
    loaded = Settings.load(**settings)
    async with memory_services(folder, parts, loaded, node_types=node_types) as services:
        await services.endpoints.add_missing(Endpoint(id="default"))
        replica = Replica(
            services, ask_metrics=parts.ask_metrics, open_jobs_period_s=open_jobs_period_s
        )
        app = create_api(replica)
        async with app.router.lifespan_context(app):
            yield Edge(services=services, app=app, **vars(parts))
