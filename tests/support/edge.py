"""The HTTP API on parts in memory or in one temporary folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from fastapi import FastAPI

from engine.graph.declarations import NodeType
from engine.nodes import NODE_TYPES
from events.decisions import Command, Complete, Start, StoreImage
from events.job import Job
from events.store.records import Endpoint, KeyLimits, Scope
from events.types import ImageStored, Poster, Submitted
from serve_app.access.api_keys import mint
from serve_app.access.owner_limits import OPEN_JOBS_PERIOD_S
from settings.settings import Settings
from storage.file_names import file_key, file_name, poster_name
from tests.support.constants import constants, take_constants
from tests.support.database import projected
from tests.support.edge_services import URL, MemoryParts, Services, memory_services
from tests.support.events import job_in
from tests.support.generate_bodies import diffusion_body
from tests.support.memory.log import MemoryLog

Client: TypeAlias = httpx.AsyncClient
"""A caller of the API."""
ALL_SCOPES = (Scope.GENERATE, Scope.READ, Scope.CANCEL)
ACTOR = "job-actor-1"


@dataclass(kw_only=True)
class Edge(MemoryParts):
    """The HTTP API and everything behind it that a test may read or change."""

    services: Services
    app: FastAPI

    async def key(
        self,
        owner: str = "alice",
        *,
        scopes: Sequence[Scope] = ALL_SCOPES,
        expires_at: datetime | None = None,
        **limits: Any,
    ) -> str:
        """The text of a new key."""
        text, key = mint(
            owner,
            "test",
            scopes,
            created_at=datetime.now(UTC),
            expires_at=expires_at,
            limits=KeyLimits(**limits),
        )
        await self.services.keys.add(key)
        return text

    async def client(self, owner: str = "alice", **options: Any) -> httpx.AsyncClient:
        return self.client_with(await self.key(owner, **options))

    def client_with(self, key: str | None) -> httpx.AsyncClient:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url=URL, headers=headers)

    def another_replica(self, **options: Any) -> Edge:
        """A replica on the same stores that has counted and read nothing yet."""
        return replace(self, app=self.services.app(**options))

    async def job(self, job_id: str) -> Job:
        return await job_in(self.log, job_id)

    async def submitted(self, answer: httpx.Response) -> Submitted:
        """Return the recorded `Submitted` of the job in this answer."""
        assert answer.is_success, answer.text
        return (await self.job(answer.json()["request_id"])).submitted

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
        duration_s: float | None = None,
        poster: bytes | None = None,
        text: str | None = None,
    ) -> None:
        image = ImageStored(
            **await self._put(file_key(job_id, 1, file_name(index, media_type)), data),
            index=index,
            attempt=1,
            width=64,
            height=64,
            seed=7,
            media_type=media_type,
            node=node,
            duration_s=duration_s,
            poster=None
            if poster is None
            else Poster(**await self._put(file_key(job_id, 1, poster_name(index)), poster)),
            text=text,
        )
        await self.execute(job_id, StoreImage(actor=ACTOR, image=image))

    async def _put(self, key: str, data: bytes) -> dict[str, Any]:
        await self.services.images.put(key, data)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return {"key": key, "size_bytes": len(data), "digest": digest}

    async def complete(self, job_id: str, *, images: int = 1) -> None:
        await self.execute(job_id, Complete(actor=ACTOR, images=images))

    async def run(self, job_id: str, *, images: int = 1, **stored: Any) -> None:
        """Run a job as a job actor would; `stored` is said of each image."""
        await self.start(job_id)
        for index in range(images):
            await self.store_image(job_id, index=index, **stored)
        await self.complete(job_id, images=images)

    async def project(self) -> None:
        """Apply the log to the read model, as the projection does."""
        await projected(self.log, self.services.read_model)


async def submit(client: httpx.AsyncClient, **parameters: Any) -> str:
    """Submit a diffusion job and return its id."""
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body(**parameters))
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.json()["request_id"])


def refusal(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the type of an error."""
    return answer.status_code, answer.json()["error"]["type"]


def lasting_headers(answer: httpx.Response) -> dict[str, str]:
    """Return the headers of an answer without those that differ for each request."""
    own = {"ratelimit", "ratelimit-policy", "x-request-id"}
    return {name: value for name, value in answer.headers.items() if name not in own}


_LOADED: dict[str, Settings] = {}


def _loaded(arguments: dict[str, Any]) -> Settings:
    """Settings never change, and to read them takes a third of the time of an edge."""
    variables = {name: text for name, text in os.environ.items() if name.startswith("DARKROOM_")}
    known = repr((arguments, variables))
    if known not in _LOADED:
        _LOADED[known] = Settings.load(**arguments)
    return _LOADED[known]


@asynccontextmanager
async def running_edge(
    folder: Path,
    *,
    log: MemoryLog | None = None,
    node_types: Sequence[NodeType] = NODE_TYPES,
    open_jobs_period_s: float = OPEN_JOBS_PERIOD_S,
    **settings: Any,
) -> AsyncGenerator[Edge]:
    """`settings` are settings and constants of the service.

    It has one endpoint, `default`, and no console.
    """
    parts = MemoryParts(log=MemoryLog() if log is None else log)
    changed = take_constants(settings)
    loaded = _loaded({"console": False} | settings)
    async with memory_services(folder, parts, loaded, node_types=node_types) as services:
        await services.endpoints.add_missing(Endpoint(id="default"))
        with constants(**changed):
            app = services.app(open_jobs_period_s=open_jobs_period_s)
            async with app.router.lifespan_context(app):
                yield Edge(services=services, app=app, **vars(parts))
