"""Rows of endpoints, as they are made and changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from events.store.records import Endpoint, StoredEndpoint
from serve_app.refusals import TooManyEndpoints
from settings.dispatch import DispatchSettings


def new(id: str, default: Endpoint, *, owner: str | None) -> StoredEndpoint:
    """One that was given nothing. `default`: the default endpoint, by the settings."""
    return StoredEndpoint(endpoint=replace(_usual(id, default), owner=owner))


def with_members(
    stored: StoredEndpoint, given: Mapping[str, Any], default: Endpoint
) -> StoredEndpoint:
    """The row once it was given these members; None stands for what is usual."""
    usual = _usual(stored.endpoint.id, default)
    members = {
        name: getattr(usual, name) if value is None else value for name, value in given.items()
    }
    taken_back = {name for name, value in given.items() if value is None}
    return replace(
        stored,
        endpoint=replace(stored.endpoint, **members),
        given=(stored.given | given.keys()) - taken_back,
    )


def require_room(rows: Collection[Endpoint], settings: DispatchSettings) -> None:
    """Raises TooManyEndpoints where there are as many as there may be."""
    if settings.max_endpoints and len(rows) >= settings.max_endpoints:
        raise TooManyEndpoints("The service", settings.max_endpoints)


def _usual(id: str, default: Endpoint) -> Endpoint:
    return default if id == default.id else Endpoint(id, cpus=default.cpus, min_workers=0)
