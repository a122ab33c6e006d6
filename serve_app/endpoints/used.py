"""UsedEndpoints: the endpoints that jobs are submitted to, as one replica remembers them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from events.ids import ENDPOINT_ID
from events.store.records import ApiKey, Endpoint
from events.types import Terms
from serve_app.access.permissions import may_see, require_endpoint
from serve_app.access.ttl_cache import TtlCache
from serve_app.refusals import EndpointDraining, EndpointNotFound, QueueFull
from serve_app.services import Services
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings

_STATUS_TTL_S = 1.0
_SHARE = 20
"""Whoever meets a full queue comes back once one in so many places should be free."""
_SHORTEST_S, _LONGEST_S = 1, 300
_UNKNOWN_SPEED_S, _NO_SPEED_S = 5, 60
"""When to come back where nobody knows how fast the queue is, and where no job ended lately."""


class UsedEndpoints:
    def __init__(self, services: Services) -> None:
        self._rows = TtlCache(
            services.endpoints.get, ttl_s=services.dispatch_settings.endpoints_period_s
        )
        self._status: TtlCache[Mapping[str, Any]] = TtlCache(
            services.endpoint_status, ttl_s=_STATUS_TTL_S
        )

    async def for_job(self, id: str, key: ApiKey) -> Endpoint:
        """Raises EndpointForbidden, EndpointNotFound, EndpointDraining, DatabaseUnavailable."""
        require_endpoint(key, id)
        endpoint = await self._rows.get(id) if re.fullmatch(ENDPOINT_ID, id) else None
        if endpoint is not None and not may_see(key, endpoint):
            endpoint = None
        return require_open(endpoint)

    async def status(self, id: str) -> Mapping[str, Any] | None:
        """What its dispatcher says; None where none answers."""
        return await self._status.get(id)

    async def queue_full(self, endpoint: Endpoint, queued: int) -> QueueFull:
        """The refusal of a job, by how fast the queue gets shorter."""
        places = queued - endpoint.max_queued + 1 + endpoint.max_queued // _SHARE
        status = await self.status(endpoint.id)
        if status is None:
            return QueueFull(endpoint.id, retry_after_s=_UNKNOWN_SPEED_S)
        rate_per_s = status.get("rate_per_s")
        if not rate_per_s:
            return QueueFull(endpoint.id, retry_after_s=_NO_SPEED_S)
        wait_s = min(math.ceil(places / rate_per_s), _LONGEST_S)
        return QueueFull(endpoint.id, retry_after_s=max(wait_s, _SHORTEST_S))

    def forget(self, id: str) -> None:
        """It was changed here."""
        self._rows.drop(id)


def require_open(endpoint: Endpoint | None) -> Endpoint:
    """Raises EndpointNotFound, EndpointDraining where it takes no jobs; None: it is unknown."""
    if endpoint is None or endpoint.ends_at is not None:
        raise EndpointNotFound
    if endpoint.draining:
        raise EndpointDraining(endpoint.id)
    return endpoint


def job_timeout_s(endpoint: Endpoint, settings: DispatchSettings) -> float:
    """No job lasts longer than the settings say: sweeps rely on that."""
    return min(endpoint.job_timeout_s or settings.job_timeout_s, settings.job_timeout_s)


def terms_of(endpoint: Endpoint, settings: GraphSettings) -> Terms:
    limits = endpoint.limits(settings)
    return Terms(
        max_pixels=limits["max_pixels"],
        max_steps=limits["max_steps"],
        max_cost=limits["max_cost"],
        max_attempts=endpoint.max_attempts,
        queue_timeout_s=endpoint.queue_timeout_s,
        compatibility=endpoint.compatibility or settings.compatibility,
    )
