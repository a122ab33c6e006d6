"""What an endpoint may be: for anybody, and for an owner who is no administrator."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from engine.errors import FieldError, ParametersInvalid
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings
from settings.keys import OwnerSettings

_USUAL = Endpoint("")
_NOT_HIGHER = ("max_pixels", "max_steps")
_PER_WORKER = ("gpus", "cpus")


def require_sound(endpoint: Endpoint, settings: DispatchSettings) -> None:
    """Raises ParametersInvalid where its members do not go together."""
    _refuse(_unsound(endpoint, settings))


def require_listed(endpoint: Endpoint, checkpoints: Collection[str]) -> None:
    """Raises ParametersInvalid where it names one that is not among `checkpoints`."""
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
    """Raises ParametersInvalid where an owner would take more of the cluster than they may.

    `others`: the other endpoints of the same owner. `given`: the members that they change; what
    else it has an administrator may have given it. None is all.
    """
    errors = (
        *_too_much_kept(endpoint, owners, dispatch),
        *_too_wide(endpoint, owners, graph),
        *_too_many("gpus", endpoint, others, most=owners.max_endpoint_gpus),
        *_too_many("cpus", endpoint, others, most=owners.max_endpoint_cpus),
    )
    _refuse(error for error in errors if given is None or _is_about(error.field, given))


def _is_about(field: str, given: Collection[str]) -> bool:
    return field in given or (field in _PER_WORKER and "max_workers" in given)


def _unsound(endpoint: Endpoint, settings: DispatchSettings) -> Iterator[FieldError]:
    if endpoint.min_workers > endpoint.max_workers:
        yield _error("min_workers", f"is above max_workers, which is {endpoint.max_workers}")
    if endpoint.gpus is not None and endpoint.gpus > 1 and endpoint.gpus % 1:
        yield _error("gpus", "is above 1 and no whole number")
    if endpoint.checkpoints and endpoint.checkpoint not in {None, *endpoint.checkpoints}:
        yield _error("checkpoint", "is not among `checkpoints`")
    longest_s = settings.job_timeout_s
    if (endpoint.job_timeout_s or 0) > longest_s:
        yield _error("job_timeout_s", f"is at most {longest_s:g} here (DARKROOM_JOB_TIMEOUT_S)")
    job_s = endpoint.job_timeout_s or longest_s
    if (endpoint.queue_timeout_s or 0) > job_s:
        yield _error("queue_timeout_s", f"is above the time that a job may take, {job_s:g}")


def _too_much_kept(
    endpoint: Endpoint, owners: OwnerSettings, dispatch: DispatchSettings
) -> Iterator[FieldError]:
    """Workers that nobody uses."""
    if owners.may_keep_workers:
        return
    if endpoint.min_workers:
        yield _error(
            "min_workers", "is 0 for endpoints of owners (DARKROOM_OWNER_MAY_KEEP_WORKERS)"
        )
    if (endpoint.idle_timeout_s or 0) > dispatch.worker_idle_s:
        most = dispatch.worker_idle_s
        yield _error("idle_timeout_s", f"is at most {most:g} for endpoints of owners")


def _too_wide(
    endpoint: Endpoint, owners: OwnerSettings, graph: GraphSettings
) -> Iterator[FieldError]:
    if endpoint.resources:
        yield _error("resources", "is for administrators")
    most_jobs = owners.max_jobs_per_worker
    if most_jobs and endpoint.jobs_per_worker > most_jobs:
        yield _error("jobs_per_worker", f"is at most {most_jobs} for endpoints of owners")
    for member in _NOT_HIGHER:
        most = getattr(_USUAL, member)
        if getattr(endpoint, member) > most:
            yield _error(member, f"is at most {most} for endpoints of owners")
    cost, most = endpoint.max_cost, graph.max_cost
    if cost is not None and most and (not cost or cost > most):
        yield _error("max_cost", f"is at most {most:g} for endpoints of owners")


def _too_many(
    member: str, endpoint: Endpoint, others: Collection[Endpoint], *, most: float
) -> Iterator[FieldError]:
    """A part of a CPU or a GPU is for administrators: whoever shares it shares its memory."""
    amount = _of_worker(endpoint, member)
    if amount % 1 or (member == "cpus" and not amount):
        yield _error(member, "is a whole number for endpoints of owners")
    used = sum(_of_worker(other, member) * other.max_workers for other in others)
    if most and used + amount * endpoint.max_workers > most:
        yield _error(
            member,
            f"the workers of all endpoints of an owner take at most {most:g} together (times "
            f"`max_workers`); the others take {used:g}",
        )


def _of_worker(endpoint: Endpoint, member: str) -> float:
    """Of GPUs that it does not say it takes one at most."""
    amount: float | None = getattr(endpoint, member)
    return 1.0 if amount is None else amount


def _error(field: str, message: str) -> FieldError:
    return FieldError("not_allowed", message, field)


def _refuse(errors: Iterator[FieldError] | Collection[FieldError]) -> None:
    if found := tuple(errors):
        raise ParametersInvalid(found)
