"""EndpointCache: one replica's cache of the endpoints to which jobs are submitted."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import zlib
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from comfyui.errors import RequestFailed
from comfyui.object_info import ObjectInfo
from events.ids import ENDPOINT_ID
from events.store.records import ENDPOINTS_PERIOD_S, ApiKey, Endpoint
from serve_app.access.api_keys import may_see, require_endpoint
from serve_app.access.ttl_cache import TtlCache
from serve_app.refusals import EndpointDraining, EndpointNotFound, QueueFull

if TYPE_CHECKING:
    from events.store.endpoints import Endpoints
    from events.store.object_infos import ObjectInfos

logger = logging.getLogger(__name__)

_STATUS_TTL_S = 1.0
_SHARE = 20
"""Retry-After is the estimated time until one twentieth of a full queue is free again."""
_SHORTEST_S, _LONGEST_S = 1, 300
_UNKNOWN_SPEED_S, _NO_SPEED_S = 5, 60
"""The values of Retry-After if the dispatcher does not answer, and if no job ended recently."""


class EndpointCache:
    def __init__(
        self,
        endpoints: Endpoints,
        object_infos: ObjectInfos,
        status_of: Callable[[str], Coroutine[Any, Any, Mapping[str, Any] | None]],
    ) -> None:
        """`status_of` returns None if the dispatcher of the endpoint does not answer."""
        self._endpoints = endpoints
        self._object_infos = object_infos
        self._rows = TtlCache(endpoints.get, ttl_s=ENDPOINTS_PERIOD_S)
        self._node_types = TtlCache(self._read_node_types, ttl_s=ENDPOINTS_PERIOD_S)
        self._status: TtlCache[Mapping[str, Any]] = TtlCache(status_of, ttl_s=_STATUS_TTL_S)

    async def usable(self, key: ApiKey) -> list[str]:
        """Return the ids of the endpoints that the key may use. Raises DatabaseUnavailable."""
        return [
            each.id
            for each in await self._endpoints.all()
            if may_see(key, each) and key.limits.allow_endpoint(each.id) and each.ends_at is None
        ]

    async def for_job(self, id: str, key: ApiKey) -> Endpoint:
        """Return the endpoint for a new job of this key.

        Raises EndpointForbidden, EndpointNotFound, EndpointDraining, DatabaseUnavailable.
        """
        return require_open(await self.named(id, key))

    async def named(self, id: str, key: ApiKey) -> Endpoint:
        """Return the endpoint that a request names, also if it is drained.

        A repeated request must get its earlier job, so only `Acceptance` refuses drained endpoints.
        Raises EndpointForbidden, EndpointNotFound, DatabaseUnavailable.
        """
        require_endpoint(key, id)
        endpoint = await self.visible(id, key)
        if endpoint is None or endpoint.ends_at is not None:
            raise EndpointNotFound
        return endpoint

    async def visible(self, id: str, key: ApiKey) -> Endpoint | None:
        """Return the endpoint if the key may use it, also if it accepts no jobs now.

        Raises DatabaseUnavailable.
        """
        if not key.limits.allow_endpoint(id) or not re.fullmatch(ENDPOINT_ID, id):
            return None
        endpoint = await self._rows.get(id)
        return endpoint if endpoint is not None and may_see(key, endpoint) else None

    async def object_info(self, endpoint: Endpoint) -> ObjectInfo | None:
        """Return the node types of an endpoint with ComfyUI, or None if they are not known.

        Raises DatabaseUnavailable.
        """
        known = await self._node_types.get(endpoint.id)
        return None if known is None else known[1]

    async def _read_node_types(self, id: str) -> tuple[str, ObjectInfo] | None:
        """Return the digest and the node types. They are read again only if the digest differs."""
        endpoint = await self._rows.get(id)
        digest = None if endpoint is None else await self._object_infos.digest(endpoint)
        if endpoint is None or digest is None:
            return None
        known = self._node_types.last(id)
        if known is not None and known[0] == digest:
            return known
        stored = await self._object_infos.get(endpoint)
        if stored is None:
            return None
        try:
            digest, content = stored
            unpacked = await asyncio.to_thread(zlib.decompress, content)
            return digest, await asyncio.to_thread(ObjectInfo, unpacked)
        except (RequestFailed, zlib.error) as error:
            fields = {"action": "read_object_info", "endpoint": id, "error": str(error)}
            logger.error("the stored node types cannot be read", extra=fields)
            return None

    async def status(self, id: str) -> Mapping[str, Any] | None:
        """Return the status of the endpoint's dispatcher; None if it does not answer."""
        return await self._status.get(id)

    async def queue_full(self, endpoint: Endpoint, queued: int) -> QueueFull:
        """Build the error for a full queue. Retry-After depends on how fast jobs currently end."""
        jobs_to_end = queued - endpoint.max_queued + 1 + endpoint.max_queued // _SHARE
        status = await self.status(endpoint.id)
        if status is None:
            return QueueFull(endpoint.id, retry_after_s=_UNKNOWN_SPEED_S)
        rate_per_s = status.get("rate_per_s")
        if not rate_per_s:
            return QueueFull(endpoint.id, retry_after_s=_NO_SPEED_S)
        wait_s = min(math.ceil(jobs_to_end / rate_per_s), _LONGEST_S)
        return QueueFull(endpoint.id, retry_after_s=max(wait_s, _SHORTEST_S))

    def forget(self, id: str) -> None:
        """Remove an endpoint from the cache, after this replica has changed the endpoint."""
        self._rows.drop(id)


def require_open(endpoint: Endpoint | None) -> Endpoint:
    """Return the endpoint if it accepts jobs. Raises EndpointNotFound, EndpointDraining."""
    if endpoint is None or endpoint.ends_at is not None:
        raise EndpointNotFound
    if endpoint.draining:
        raise EndpointDraining(endpoint.id)
    return endpoint
