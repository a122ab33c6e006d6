"""Names of workers and their actors. They can be computed, so that a successor finds them.

worker:<endpoint>:<digest>:<index>           a placement group
worker:<endpoint>:<digest>:<index>:engine    its engine
worker:<endpoint>:<digest>:<index>:standby   the process that takes the place of a dead engine
worker:<endpoint>:<digest>:<index>:job:<n>   the job actor of a slot

A digest is `<release>-<make>`, see `WorkerConfig`.
"""

from __future__ import annotations

from actors.worker.config import WorkerConfig

ALL_WORKERS = "worker:"
"""How the names of all workers begin."""


def endpoint_prefix(endpoint_id: str) -> str:
    """How the names of all workers of an endpoint begin."""
    return f"{ALL_WORKERS}{endpoint_id}:"


def endpoint_of(worker: str) -> str:
    """The id of the endpoint whose worker has this name."""
    return worker.split(":")[1]


def worker_prefix(config: WorkerConfig) -> str:
    """How the names of all workers begin that are made from this config, and of no others."""
    return f"{endpoint_prefix(config.endpoint.id)}{config.digest()}:"


def release_of(prefix: str) -> str:
    """How the names begin of all workers of that endpoint that run the same program by the same
    settings, whatever else their endpoint has them made from; `prefix` of those made one way.
    """
    return prefix[: prefix.rindex("-") + 1]


def worker_name(prefix: str, index: int) -> str:
    return f"{prefix}{index}"


def index_of(worker: str) -> int:
    return int(worker.rsplit(":", 1)[1])


def engine_name(worker: str) -> str:
    return f"{worker}:engine"


def standby_name(worker: str) -> str:
    """Its engine's second process. Which of the two has the device changes whenever one dies."""
    return f"{worker}:standby"


def slot_name(worker: str, number: int) -> str:
    return f"{worker}:job:{number}"


def slot_number(name: str) -> int:
    """Of the slot whose job actor has this name."""
    return int(name.rsplit(":", 1)[1])


def is_slot_name(name: str) -> bool:
    return ":job:" in name
