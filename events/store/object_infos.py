"""The node types of each endpoint with ComfyUI, as its server last declared them."""

from __future__ import annotations

import sqlalchemy as sa

from events.store.database import Database
from events.store.records import Endpoint
from events.store.tables import OBJECT_INFOS


class ObjectInfos:
    """Each digest is that of an answer of ComfyUI's `/object_info`, and each content is the answer,
    compressed by zlib. Every method raises DatabaseUnavailable.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, endpoint: Endpoint, digest: str, content: bytes) -> None:
        row = {
            "endpoint": endpoint.id,
            "server": _server(endpoint),
            "digest": digest,
            "content": content,
        }
        await self._database.execute(self._database.upsert(OBJECT_INFOS).values(row))

    async def digest(self, endpoint: Endpoint) -> str | None:
        """Return the stored digest, or None if the present server has declared nothing yet."""
        rows = await self._database.fetch(sa.select(OBJECT_INFOS.c.digest).where(_of(endpoint)))
        return rows[0].digest if rows else None

    async def get(self, endpoint: Endpoint) -> tuple[str, bytes] | None:
        """Return the stored digest and content, as `digest` does."""
        rows = await self._database.fetch(sa.select(OBJECT_INFOS).where(_of(endpoint)))
        return (rows[0].digest, rows[0].content) if rows else None


def _of(endpoint: Endpoint) -> sa.ColumnElement[bool]:
    # What another server declared says nothing about the present one.
    return (OBJECT_INFOS.c.endpoint == endpoint.id) & (OBJECT_INFOS.c.server == _server(endpoint))


def _server(endpoint: Endpoint) -> str:
    return endpoint.comfyui_url or endpoint.comfyui_dir or ""
