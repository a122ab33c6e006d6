"""EndpointAdministration: creates, changes, drains and deletes endpoints on behalf of a key."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.interface import FieldError, ModelsFolder, ParametersInvalid
from events.ids import ENDPOINT_ID
from events.log import utc_now
from events.store.records import DEFAULT_ENDPOINT, ApiKey, Endpoint, Scope, StoredEndpoint
from serve_app.access.api_keys import require_endpoint
from serve_app.refusals import (
    EndpointChanged,
    EndpointExists,
    EndpointNotDeletable,
    EndpointNotFound,
    ScopeMissing,
    TooManyEndpoints,
)
from settings.constant import constant
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings
from settings.keys import OwnerSettings

if TYPE_CHECKING:
    from events.store.endpoints import Endpoints

_ENDPOINT_DRAIN_S = constant("ENDPOINT_DRAIN_S", 300.0)
"""Seconds that a deleted endpoint has to finish its jobs, if the request states no time."""
_MAX_ENDPOINTS = constant("MAX_ENDPOINTS", 100)
"""The largest number of endpoints, including the default endpoint. Each endpoint has 8 NATS
consumers, and NATS allows 1000 consumers by default.
"""
_MAX_JOBS_PER_WORKER = 16
"""The most jobs per worker on an endpoint with an owner. Each needs a process of about 100 MiB."""
_DEFAULTS = Endpoint("")
_OF_INSTALL = (
    "comfyui_python",
    "comfyui_args",
    "comfyui_max_jobs",
    "comfyui_max_memory_gib",
    "comfyui_partner_nodes",
)
_COMFYUI = (
    "comfyui_url",
    "comfyui_dir",
    *_OF_INSTALL,
    "comfyui_required_nodes",
    "comfyui_allowed_nodes",
    "comfyui_denied_nodes",
)
_NOT_HIGHER = ("max_pixels", "max_steps")
_PER_WORKER = ("gpus", "cpus")


def require_sound(endpoint: Endpoint, settings: DispatchSettings) -> None:
    """Raise ParametersInvalid if members of the endpoint contradict each other."""
    _refuse(_unsound(endpoint, settings))


def require_listed(endpoint: Endpoint, checkpoints: Collection[str]) -> None:
    """Raise ParametersInvalid if the endpoint names a checkpoint that is not in `checkpoints`."""
    named = {"checkpoint": [endpoint.checkpoint], "checkpoints": endpoint.checkpoints or ()}
    _refuse(
        _error(member, f"there is no checkpoint {name!r}; see GET /v1/models")
        for member, names in named.items()
        for name in names
        if name is not None and name not in checkpoints
    )


def require_within_limits(
    endpoint: Endpoint,
    others: Collection[Endpoint],
    *,
    given: Collection[str] | None,
    owners: OwnerSettings,
    dispatch: DispatchSettings,
    graph: GraphSettings,
) -> None:
    """Raise ParametersInvalid if an owner would use more of the cluster than allowed.

    `others` are the other endpoints of the same owner. `given` are the members that the owner
    changes; None means all. Other members are not checked, because an administrator may have set
    them.
    """
    errors = (
        *_too_much_kept(endpoint, owners, dispatch),
        *_too_wide(endpoint, graph),
        *_too_much_of("gpus", endpoint, others, most=owners.max_endpoint_gpus),
        *_too_much_of("cpus", endpoint, others, most=owners.max_endpoint_cpus),
    )
    _refuse(error for error in errors if given is None or _is_about(error.field, given))


def require_same_engine(before: Endpoint, after: Endpoint) -> None:
    """Raise ParametersInvalid if the engine changes.

    The waiting jobs of an endpoint were accepted for its engine, and may not run on another one.
    """
    if after.engine != before.engine:
        text = "cannot be changed; create another endpoint"
        raise ParametersInvalid((_error("engine", text),))


def _is_about(field: str, given: Collection[str]) -> bool:
    return field in given or (field in _PER_WORKER and "max_workers" in given)


def _unsound(endpoint: Endpoint, settings: DispatchSettings) -> Iterator[FieldError]:
    if endpoint.min_workers > endpoint.max_workers:
        yield _error(
            "min_workers", f"must not be above max_workers, which is {endpoint.max_workers}"
        )
    if endpoint.gpus is not None and endpoint.gpus > 1 and endpoint.gpus % 1:
        yield _error("gpus", "must be a whole number if it is above 1")
    if endpoint.checkpoints and endpoint.checkpoint not in {None, *endpoint.checkpoints}:
        yield _error("checkpoint", "must be among `checkpoints`")
    if endpoint.fallback == endpoint.id:
        yield _error("fallback", "must be another endpoint")
    yield from _unsound_engine(endpoint)
    longest_s = settings.job_timeout_s
    if (endpoint.job_timeout_s or 0) > longest_s:
        yield _error(
            "job_timeout_s",
            f"must be at most {longest_s:g}, the limit of this service (DARKROOM_JOB_TIMEOUT_S)",
        )
    job_s = endpoint.job_timeout_s or longest_s
    if (endpoint.queue_timeout_s or 0) > job_s:
        yield _error("queue_timeout_s", f"must not be above the longest time of a job, {job_s:g}")


def _unsound_engine(endpoint: Endpoint) -> Iterator[FieldError]:
    given = [name for name in _COMFYUI if getattr(endpoint, name) is not None]
    if endpoint.engine != "comfyui":
        for name in given:
            yield _error(name, "can be set only with the engine `comfyui`")
        return
    if (endpoint.comfyui_url is None) == (endpoint.comfyui_dir is None):
        yield _error("engine", "`comfyui` needs either `comfyui_url` or `comfyui_dir`")
    if endpoint.compatibility == "webui":
        yield _error("compatibility", "must be `comfyui` with the engine `comfyui`")
    if endpoint.comfyui_url is None:
        return
    for name in _OF_INSTALL:
        if name in given:
            yield _error(name, "can be set only with `comfyui_dir`")
    if endpoint.max_workers != 1:
        yield _error("max_workers", "must be 1 with `comfyui_url`, which is one server")
    if endpoint.gpus:
        yield _error("gpus", "must be 0 with `comfyui_url`, whose server has its own device")


def _too_much_kept(
    endpoint: Endpoint, owners: OwnerSettings, dispatch: DispatchSettings
) -> Iterator[FieldError]:
    """Yield an error for each member that keeps idle workers running."""
    if owners.may_keep_workers:
        return
    if endpoint.min_workers:
        yield _error(
            "min_workers",
            "must be 0 for endpoints of owners, unless DARKROOM_OWNER_MAY_KEEP_WORKERS is set",
        )
    if (endpoint.idle_timeout_s or 0) > dispatch.worker_idle_s:
        most = dispatch.worker_idle_s
        yield _error("idle_timeout_s", f"must be at most {most:g} for endpoints of owners")


def _too_wide(endpoint: Endpoint, graph: GraphSettings) -> Iterator[FieldError]:
    if endpoint.resources:
        yield _error("resources", "can be set only by administrators")
    if endpoint.engine == "comfyui":
        for name in ("engine", *_COMFYUI):
            yield _error(name, "can be set only by administrators")
    if endpoint.jobs_per_worker > _MAX_JOBS_PER_WORKER:
        message = f"must be at most {_MAX_JOBS_PER_WORKER} for endpoints of owners"
        yield _error("jobs_per_worker", message)
    for member in _NOT_HIGHER:
        most = getattr(_DEFAULTS, member)
        if getattr(endpoint, member) > most:
            yield _error(member, f"must be at most {most} for endpoints of owners")
    cost, most = endpoint.max_cost, graph.max_cost
    if cost is not None and most and (not cost or cost > most):
        yield _error("max_cost", f"must be at most {most:g} for endpoints of owners")


def _too_much_of(
    member: str, endpoint: Endpoint, others: Collection[Endpoint], *, most: float
) -> Iterator[FieldError]:
    """Yield errors if a worker takes a fraction of a device, or all workers take more than `most`.

    Only administrators may request fractions, because workers on one device share its memory.
    """
    amount = _of_worker(endpoint, member)
    if amount % 1 or (member == "cpus" and not amount):
        yield _error(member, "must be a whole number for endpoints of owners")
    used = sum(_of_worker(other, member) * other.max_workers for other in others)
    if most and used + amount * endpoint.max_workers > most:
        yield _error(
            member,
            f"the workers of all endpoints of an owner may take at most {most:g} together (each "
            f"counts `max_workers` times); the other endpoints take {used:g}",
        )


def _of_worker(endpoint: Endpoint, member: str) -> float:
    """Return the number of GPUs or CPUs that one worker takes. An unset number counts as one.

    `member` is "gpus" or "cpus".
    """
    amount: float | None = getattr(endpoint, member)
    return 1.0 if amount is None else amount


def _error(field: str, message: str) -> FieldError:
    return FieldError("not_allowed", message, field)


def _refuse(errors: Iterator[FieldError] | Collection[FieldError]) -> None:
    if found := tuple(errors):
        raise ParametersInvalid(found)


def new_endpoint(
    id: str, configured: Mapping[str, Endpoint], *, owner: str | None
) -> StoredEndpoint:
    """Build an endpoint with default values. `configured` are the endpoints of the settings."""
    return StoredEndpoint(endpoint=replace(_row_without_members(id, configured), owner=owner))


def with_members(
    stored: StoredEndpoint, given: Mapping[str, Any], configured: Mapping[str, Endpoint]
) -> StoredEndpoint:
    """Return the endpoint with these members changed. The value None restores the default."""
    usual = _row_without_members(stored.endpoint.id, configured)
    members = {
        name: getattr(usual, name) if value is None else value for name, value in given.items()
    }
    taken_back = {name for name, value in given.items() if value is None}
    return replace(
        stored,
        endpoint=replace(stored.endpoint, **members),
        given=(stored.given | given.keys()) - taken_back,
    )


def require_below_limit(rows: Collection[Endpoint]) -> None:
    """Raise TooManyEndpoints if the largest number of endpoints is reached."""
    if len(rows) >= _MAX_ENDPOINTS:
        raise TooManyEndpoints("The service", _MAX_ENDPOINTS)


def _row_without_members(id: str, configured: Mapping[str, Endpoint]) -> Endpoint:
    """Return the endpoint with the values that it has if no member is given."""
    usual = Endpoint(id, cpus=configured[DEFAULT_ENDPOINT].cpus, min_workers=0)
    return configured.get(id, usual)


class EndpointAdministration:
    """Administers endpoints on behalf of a key.

    A key with the scope `admin` can administer all endpoints. Other keys can see and administer
    only the endpoints of their owner. All methods raise DatabaseUnavailable. Methods with an `id`
    raise EndpointForbidden if the limits of the key exclude the endpoint.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        models: ModelsFolder,
        *,
        configured: Mapping[str, Endpoint],
        owners: OwnerSettings,
        dispatch: DispatchSettings,
        graph: GraphSettings,
    ) -> None:
        """`configured` are the endpoints of the settings by id."""
        self._rows = endpoints
        self._models = models
        self._configured = configured
        self._owners = owners
        self._dispatch = dispatch
        self._graph = graph

    async def all(self, key: ApiKey) -> list[StoredEndpoint]:
        """Return the endpoints that the key may see, sorted by id."""
        owner = None if _is_admin(key) else key.owner
        found = await self._rows.stored(owner=owner)
        return [each for each in found if key.limits.allow_endpoint(each.endpoint.id)]

    async def one(self, key: ApiKey, id: str) -> StoredEndpoint:
        """Return an endpoint that the key may see. Raises EndpointNotFound."""
        require_endpoint(key, id)
        stored = await self._rows.stored_one(id) if re.fullmatch(ENDPOINT_ID, id) else None
        if stored is None or not (_is_admin(key) or stored.endpoint.owner == key.owner):
            raise EndpointNotFound
        return stored

    async def create(
        self, key: ApiKey, id: str, given: dict[str, Any], *, owner: str | None
    ) -> StoredEndpoint:
        """Create an endpoint. `given` has members of `Endpoint`.

        Raises EndpointExists, ParametersInvalid, ScopeMissing, TooManyEndpoints,
        ModelsUnavailable.
        """
        require_endpoint(key, id)
        if not _is_admin(key):
            if owner not in {None, key.owner}:
                raise ScopeMissing(Scope.ADMIN)
            owner = key.owner
        new = new_endpoint(id, self._configured, owner=owner)
        stored = with_members(new, given, self._configured)
        most = self._owners.max_endpoints

        def check(rows: Collection[Endpoint]) -> None:
            require_below_limit(rows)
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
        """Change an endpoint. `given` has members of `Endpoint`; None restores the default value.

        If `revision` is given and differs from the endpoint's revision, raises EndpointChanged.
        Also raises EndpointNotFound, ParametersInvalid, ModelsUnavailable.
        """
        while True:
            stored = await self.one(key, id)
            if revision not in {None, stored.revision}:
                raise EndpointChanged(stored.revision)
            changed = with_members(stored, given, self._configured)
            if changed == stored:
                return stored
            if stored.endpoint.ends_at is not None:
                raise EndpointNotFound("The endpoint is being deleted.")
            require_same_engine(stored.endpoint, changed.endpoint)
            if members := given.keys() - {"draining"}:
                await self._require_sound(changed.endpoint, members)
            share = partial(self._require_share, changed.endpoint, given=members)
            check = share if members and not _is_admin(key) else None
            if (now := await self._rows.change(changed, check=check)) is not None:
                return now

    async def delete(self, key: ApiKey, id: str, *, drain_s: float | None) -> StoredEndpoint:
        """Delete an endpoint after it has had `drain_s` seconds to finish its jobs.

        None means `_ENDPOINT_DRAIN_S`. A repeated call can only shorten the time. Raises
        EndpointNotFound, EndpointNotDeletable.
        """
        ends_at = utc_now() + timedelta(seconds=_ENDPOINT_DRAIN_S if drain_s is None else drain_s)
        while True:
            stored = await self.one(key, id)
            if id in self._configured:
                raise EndpointNotDeletable  # The next start would create it again.
            before = stored.endpoint.ends_at
            if before is not None and (drain_s is None or before <= ends_at):
                return stored
            going = replace(stored.endpoint, draining=True, ends_at=ends_at)
            if (now := await self._rows.change(replace(stored, endpoint=going))) is not None:
                return now

    async def _require_sound(self, endpoint: Endpoint, given: Collection[str] | None) -> None:
        """Check an endpoint. `given` are the changed members; None means all, for a new endpoint.

        Raises ParametersInvalid, ModelsUnavailable.
        """
        require_sound(endpoint, self._dispatch)
        if endpoint.engine == "comfyui":
            return  # The checkpoints of the server are not in the models folder.
        if given is None or not {"checkpoint", "checkpoints", "engine"}.isdisjoint(given):
            require_listed(endpoint, await asyncio.to_thread(self._models.names, "checkpoints"))

    def _require_share(
        self, endpoint: Endpoint, rows: Collection[Endpoint], given: Collection[str] | None
    ) -> None:
        """Check the owner's limits. `rows` are all endpoints, `given` the changed members."""
        owner, id = endpoint.owner, endpoint.id
        require_within_limits(
            endpoint,
            [other for other in rows if other.owner == owner and other.id != id],
            given=given,
            owners=self._owners,
            dispatch=self._dispatch,
            graph=self._graph,
        )


def _is_admin(key: ApiKey) -> bool:
    return Scope.ADMIN in key.scopes
