"""Names of workers and of their actors. All dispatchers compute the same names.

worker:<endpoint>:<digest>:<index>           a placement group
worker:<endpoint>:<digest>:<index>:engine    its engine
worker:<endpoint>:<digest>:<index>:standby   its standby
worker:<endpoint>:<digest>:<index>:job:<n>   the job actor of a slot

A digest has the form `<release>-<make>` (see `WorkerConfig.digest`).
"""

from __future__ import annotations

from actors.worker.config import WorkerConfig

ALL_WORKERS = "worker:"
"""Prefix of the names of all workers."""


def endpoint_prefix(endpoint_id: str) -> str:
    """Return the prefix of the names of all workers of an endpoint."""
    return f"{ALL_WORKERS}{endpoint_id}:"


def endpoint_of(worker: str) -> str:
    """Return the id of the endpoint of a worker."""
    return worker.split(":")[1]


def worker_prefix(config: WorkerConfig) -> str:
    """Return the prefix of the names of exactly the workers that are made from this config."""
    return f"{endpoint_prefix(config.endpoint.id)}{config.digest()}:"


def release_of(prefix: str) -> str:
    """Return the prefix of the names of an endpoint's workers of the same release.

    `prefix` is the `worker_prefix` of one of their configs, which differ in the row of the
    endpoint.
    """
    return prefix[: prefix.rindex("-") + 1]


def worker_name(prefix: str, index: int) -> str:
    return f"{prefix}{index}"


def index_of(worker: str) -> int:
    return int(worker.rsplit(":", 1)[1])


def engine_name(worker: str) -> str:
    return f"{worker}:engine"


def standby_name(worker: str) -> str:
    return f"{worker}:standby"


def slot_name(worker: str, number: int) -> str:
    return f"{worker}:job:{number}"


def slot_number(name: str) -> int:
    """Return the number of the slot whose job actor has this name."""
    return int(name.rsplit(":", 1)[1])


def is_slot_name(name: str) -> bool:
    return ":job:" in name
