"""Endpoints that a YAML file declares. The file is read at each start (`DARKROOM_ENDPOINTS_FILE`).

    endpoints:
      portraits:
        owner: alice          # without an owner, the endpoint is open to all owners
        checkpoint: portraits.safetensors
        max_workers: 2

A declaration is applied once, and again after the declaration changes. Therefore every replica may
apply the file, and changes by the API stay in effect until the declaration changes. An endpoint
that is removed from the file is not deleted. If another owner already has an endpoint with a
declared id, the endpoint gets the declared owner and members, and defaults for all other members.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from engine.interface import FieldError, ParametersInvalid
from events.store.records import DEFAULT_ENDPOINT, Endpoint
from serve_app.endpoints.administration import (
    new_endpoint,
    require_below_limit,
    require_same_engine,
    require_sound,
    with_members,
)
from serve_app.endpoints.schemas import NewEndpoint
from serve_app.refusals import RequestRefused
from settings.dispatch import DispatchSettings

if TYPE_CHECKING:
    from events.store.endpoints import Endpoints

logger = logging.getLogger(__name__)

_MOST_BYTES = 1024 * 1024


class EndpointsFileInvalid(Exception):
    """The file cannot be read, or a declaration is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    id: str
    owner: str | None
    given: Mapping[str, Any]
    """Members of `Endpoint`; None stands for the default value."""

    def digest(self) -> str:
        text = json.dumps([self.owner, self.given], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def read_declarations(path: Path) -> list[Declaration]:
    """Read the declarations in a file. Raises EndpointsFileInvalid."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
        content: Any = yaml.safe_load(text) if len(text) <= _MOST_BYTES else None
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise EndpointsFileInvalid(f"{path}: {error}") from error
    declared = content.get("endpoints") if isinstance(content, dict) else None
    if not isinstance(declared, dict) or content.keys() != {"endpoints"}:
        raise EndpointsFileInvalid(
            f"{path}: the file must have the key `endpoints:`, and below it the id of each "
            "endpoint with its members"
        )
    return [_declaration(path, id, members) for id, members in declared.items()]


def _declaration(path: Path, id: Any, members: Any) -> Declaration:
    place = f"{path}: endpoint {id!r}"
    if not isinstance(members, dict | None) or "id" in (members or {}):
        raise EndpointsFileInvalid(f"{place}: write its members below its id")
    try:
        body = NewEndpoint.model_validate({**(members or {}), "id": id})
    except ValidationError as error:
        wrong = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise EndpointsFileInvalid(f"{place}: {'; '.join(wrong)}") from error
    return Declaration(id=body.id, owner=body.owner, given=body.given())


class DeclaredEndpoints:
    def __init__(
        self,
        endpoints: Endpoints,
        *,
        configured: Mapping[str, Endpoint],
        settings: DispatchSettings,
    ) -> None:
        """`configured` are the endpoints of the settings by id."""
        self._endpoints = endpoints
        self._configured = configured
        self._settings = settings

    async def apply(self, path: Path) -> None:
        """Apply the declared endpoints. An invalid declaration is logged and skipped.

        Raises DatabaseUnavailable.
        """
        try:
            declarations = read_declarations(path)
        except EndpointsFileInvalid as error:
            fields = {"action": "declare_endpoints", "error": str(error)}
            logger.error("endpoints file not applied", extra=fields)
            return
        for declared in declarations:
            fields = {"action": "declare_endpoints", "endpoint": declared.id}
            try:
                if await self._apply(declared):
                    logger.info("endpoint declared", extra=fields)
            except (RequestRefused, ParametersInvalid) as error:
                logger.error("endpoint not declared", extra=fields | {"error": str(error)})

    async def _apply(self, declared: Declaration) -> bool:
        """Apply a declaration. Returns False if it was applied before or the endpoint is deleted.

        Raises TooManyEndpoints, ParametersInvalid, DatabaseUnavailable.
        """
        digest = declared.digest()
        while True:
            stored = await self._endpoints.stored_one(declared.id)
            if stored is not None and (stored.applied == digest or stored.endpoint.ends_at):
                return False
            before = new_endpoint(declared.id, self._configured, owner=declared.owner)
            if stored is not None:
                is_theirs = stored.endpoint.owner == declared.owner
                before = stored if is_theirs else replace(before, revision=stored.revision)
            changed = with_members(before, declared.given, self._configured)
            if declared.owner is not None and declared.id == DEFAULT_ENDPOINT:
                message = "the default endpoint must accept the jobs of all owners"
                raise ParametersInvalid((FieldError("not_allowed", message, "owner"),))
            if stored is not None:
                require_same_engine(stored.endpoint, changed.endpoint)
            require_sound(changed.endpoint, self._settings)
            changed = replace(changed, applied=digest)
            if stored is None:
                if await self._endpoints.add(changed, check=require_below_limit):
                    return True
            elif await self._endpoints.change(changed) is not None:
                return True
