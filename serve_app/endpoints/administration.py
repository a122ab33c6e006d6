"""EndpointAdministration: endpoints made, changed, drained and deleted, and who may do that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from engine.graph.models_folder import CHECKPOINTS
from events.ids import ENDPOINT_ID
from events.log import utc_now
from events.store.records import ApiKey, Endpoint, Scope, StoredEndpoint
from serve_app.access.permissions import require_endpoint
from serve_app.endpoints.rows import new, require_room, with_members
from serve_app.endpoints.rules import require_listed, require_sound, require_within_limits
from serve_app.refusals import (
    EndpointChanged,
    EndpointExists,
    EndpointNotDeletable,
    EndpointNotFound,
    ScopeMissing,
    TooManyEndpoints,
)
from serve_app.services import Services


class EndpointAdministration:
    """An administrator administers all; another key those of its owner, and knows of no others.

    Raises DatabaseUnavailable, EndpointForbidden where the key is not for the endpoint, and what
    each method says.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rows = services.endpoints

    async def all(self, key: ApiKey) -> list[StoredEndpoint]:
        """By id."""
        owner = None if _is_admin(key) else key.owner
        found = await self._rows.stored(owner=owner)
        return [each for each in found if key.limits.allow_endpoint(each.endpoint.id)]

    async def one(self, key: ApiKey, id: str) -> StoredEndpoint:
        """Raises EndpointNotFound."""
        require_endpoint(key, id)
        stored = await self._rows.stored_one(id) if re.fullmatch(ENDPOINT_ID, id) else None
        if stored is None or not (_is_admin(key) or stored.endpoint.owner == key.owner):
            raise EndpointNotFound
        return stored

    async def create(
        self, key: ApiKey, id: str, given: dict[str, Any], *, owner: str | None
    ) -> StoredEndpoint:
        """`given`: members of `Endpoint`. Raises EndpointExists, ParametersInvalid, ScopeMissing,
        TooManyEndpoints, ModelsUnavailable.
        """
        require_endpoint(key, id)
        if not _is_admin(key):
            if owner not in {None, key.owner}:
                raise ScopeMissing(Scope.ADMIN)
            owner = key.owner
        services, default = self._services, self._services.default_endpoint
        stored = with_members(new(id, default, owner=owner), given, default)
        most = services.owner_settings.max_endpoints

        def check(rows: Collection[Endpoint]) -> None:
            require_room(rows, services.dispatch_settings)
            if not _is_admin(key):
                if most and sum(each.owner == owner for each in rows) >= most:
                    raise TooManyEndpoints("An owner", most)
                self._require_share(stored.endpoint, rows, None)

        await self._require_sound(stored.endpoint, None)
        if not await self._rows.add(stored, check=check):
            raise EndpointExists
        return stored

    async def change(
        self, key: ApiKey, id: str, given: dict[str, Any], *, revision: int | None
    ) -> StoredEndpoint:
        """`given`: members of `Endpoint`; None stands for what is usual.

        `revision`: raise EndpointChanged if it has another one. Raises EndpointNotFound,
        ParametersInvalid, ModelsUnavailable.
        """
        while True:
            stored = await self.one(key, id)
            if revision not in {None, stored.revision}:
                raise EndpointChanged(stored.revision)
            changed = with_members(stored, given, self._services.default_endpoint)
            if changed == stored:
                return stored
            if stored.endpoint.ends_at is not None:
                raise EndpointNotFound("The endpoint is being deleted.")
            if members := given.keys() - {"draining"}:
                await self._require_sound(changed.endpoint, members)
            share = partial(self._require_share, changed.endpoint, given=members)
            check = share if members and not _is_admin(key) else None
            if (now := await self._rows.change(changed, check=check)) is not None:
                return now

    async def delete(self, key: ApiKey, id: str, *, drain_s: float | None) -> StoredEndpoint:
        """Let it work off its jobs for that long; a repeat can only shorten it.

        `drain_s`: None is as the settings have it. Raises EndpointNotFound, EndpointNotDeletable.
        """
        usual_s = self._services.dispatch_settings.endpoint_drain_s
        ends_at = utc_now() + timedelta(seconds=usual_s if drain_s is None else drain_s)
        while True:
            stored = await self.one(key, id)
            if id == self._services.default_endpoint.id:
                raise EndpointNotDeletable
            before = stored.endpoint.ends_at
            if before is not None and (drain_s is None or before <= ends_at):
                return stored
            going = replace(stored.endpoint, draining=True, ends_at=ends_at)
            if (now := await self._rows.change(replace(stored, endpoint=going))) is not None:
                return now

    async def _require_sound(self, endpoint: Endpoint, given: Collection[str] | None) -> None:
        """`given`: the members that it is given; None is all, of a new one."""
        services = self._services
        require_sound(endpoint, services.dispatch_settings)
        if given is None or not {"checkpoint", "checkpoints"}.isdisjoint(given):
            models = services.catalogue.models
            require_listed(endpoint, await asyncio.to_thread(models.names, CHECKPOINTS))

    def _require_share(
        self, endpoint: Endpoint, rows: Collection[Endpoint], given: Collection[str] | None
    ) -> None:
        """`rows`: all endpoints as they are. `given`: the members that its owner changes."""
        services, owner, id = self._services, endpoint.owner, endpoint.id
        require_within_limits(
            endpoint,
            [other for other in rows if other.owner == owner and other.id != id],
            given=given,
            owners=services.owner_settings,
            dispatch=services.dispatch_settings,
            graph=services.graph_settings,
        )


def _is_admin(key: ApiKey) -> bool:
    return Scope.ADMIN in key.scopes
