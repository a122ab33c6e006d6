"""Names of workers and of their actors. Every dispatcher computes the same names.

worker:<endpoint>:<digest>:<index>           a placement group
worker:<endpoint>:<digest>:<index>:engine    its engine
worker:<endpoint>:<digest>:<index>:standby   the process that takes over from a dead engine
worker:<endpoint>:<digest>:<index>:job:<n>   the job actor of a slot

A digest has the form `<release>-<make>` (see `WorkerConfig.digest`).
"""

from __future__ import annotations

from actors.worker.config import WorkerConfig

ALL_WORKERS = "worker:"
"""Prefix of the names of all workers."""


def endpoint_prefix(endpoint_id: str) -> str:
    """Prefix of the names of all workers of an endpoint."""
    return f"{ALL_WORKERS}{endpoint_id}:"


def endpoint_of(worker: str) -> str:
    """The id of the endpoint whose worker has this name."""
    return worker.split(":")[1]


def worker_prefix(config: WorkerConfig) -> str:
    """Prefix of the names of the workers that are made from this config. No other worker's name has
    this prefix.
    """
    return f"{endpoint_prefix(config.endpoint.id)}{config.digest()}:"


def release_of(prefix: str) -> str:
    """Prefix of the names of an endpoint's workers with the same program version and settings.

    `prefix` is the `worker_prefix` of one config. The workers of a release may be made from several
    configs of their endpoint.
    """
    return prefix[: prefix.rindex("-") + 1]


def worker_name(prefix: str, index: int) -> str:
    return f"{prefix}{index}"


def index_of(worker: str) -> int:
    return int(worker.rsplit(":", 1)[1])


def engine_name(worker: str) -> str:
    return f"{worker}:engine"


def standby_name(worker: str) -> str:
    """Name of the second engine process. It takes the device when the first process dies."""
    return f"{worker}:standby"


def slot_name(worker: str, number: int) -> str:
    return f"{worker}:job:{number}"


def slot_number(name: str) -> int:
    """The number of the slot whose job actor has this name."""
    return int(name.rsplit(":", 1)[1])


def is_slot_name(name: str) -> bool:
    return ":job:" in name
