"""The database records outside the read model: API keys, endpoints, uploads and files of owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from events.types import Priority
from settings.constant import constant
from settings.graph import Compatibility, GraphSettings
from settings.keys import ImageFormat

ENDPOINTS_PERIOD_S = constant("ENDPOINTS_PERIOD_S", 2.0)
"""Seconds between two reads of the rows of endpoints, in each process that uses them."""

DEFAULT_ENDPOINT = "default"
"""The id of the endpoint of requests that name none."""

EngineKind: TypeAlias = Literal["darkroom", "comfyui"]
Precision: TypeAlias = Literal["auto", "float32", "float16", "bfloat16"]


class Scope(StrEnum):
    GENERATE = "generate"
    READ = "read"
    CANCEL = "cancel"
    ENDPOINTS = "endpoints"
    METRICS = "metrics"
    ADMIN = "admin"


ANY = "*"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of a key. Unless a field says otherwise, None means the default of the settings."""

    rate_per_s: float | None = None
    """The largest number of requests per second; 0 means no limit."""
    burst: int | None = None
    """The largest number of requests at once after a pause."""
    max_open_jobs: int | None = None
    """The largest number of jobs that wait or run; 0 means no limit."""
    endpoints: tuple[str, ...] | None = None
    """The ids of the allowed endpoints, or `*`."""
    callback_hosts: tuple[str, ...] | None = None
    """The allowed callback hosts: host names, `*.example.com` for every name below it, or `*`."""
    max_cost: float | None = None
    """The largest cost of one job in megapixel-steps; 0 means the limit of its endpoint."""
    embed_metadata: bool | None = None
    """Whether images contain the parameters from which they were made."""
    image_format: ImageFormat | None = None
    """The format of images if the request does not name a format."""
    image_quality: int | None = None
    """The quality of WebP and JPEG images, 1 to 100, if the request does not set a quality."""
    weight: float | None = None
    """The weight of the owner's share of an endpoint while other owners wait; None means 1."""
    priority: Priority | None = None
    """The priority class of the key's jobs; None means normal."""

    def over(self, defaults: KeyLimits) -> KeyLimits:
        """Return these limits, with the values of `defaults` in place of None."""
        set_values = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(defaults, **set_values)

    def allow_endpoint(self, id: str) -> bool:
        return self.endpoints is None or not {ANY, id}.isdisjoint(self.endpoints)

    def allow_callback_host(self, host: str) -> bool:
        """Return whether callbacks to this host are allowed. `host` is a `Target.host`."""
        return self.callback_hosts is None or any(
            pattern in {ANY, host} or (pattern[:2] == "*." and host.endswith(pattern[1:]))
            for pattern in self.callback_hosts
        )


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A stored API key. It contains only a hash of the secret, not the key itself."""

    id: str
    owner: str
    name: str
    secret_sha256: str = field(repr=False)
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str | None = None
    """The id of the key that replaced this key by rotation."""
    limits: KeyLimits = KeyLimits()

    def is_live(self, now: datetime) -> bool:
        expired = self.expires_at is not None and now >= self.expires_at
        return self.revoked_at is None and not expired


@dataclass(frozen=True, slots=True)
class OwnerBytes:
    """The bytes of an owner's jobs and uploads, until their rows are removed."""

    log_bytes: int = 0
    result_bytes: int = 0
    upload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A named set of workers with one configuration: engine, models, hardware and limits."""

    id: str
    engine: EngineKind = "darkroom"
    """The engine that runs the graphs: Darkroom's own, or a ComfyUI server."""
    fallback: str | None = None
    """The id of the endpoint that runs the workflows which only its ComfyUI server can run."""
    comfyui_url: str | None = None
    """The address of a ComfyUI server that runs already. Exactly one of this and `comfyui_dir` is
    set if the engine is `comfyui`.
    """
    comfyui_dir: str | None = None
    """The folder of a ComfyUI install, on the machines of the workers. Each worker starts it."""
    comfyui_python: str | None = None
    """The interpreter of the install; None means the one in its virtual environment."""
    comfyui_args: tuple[str, ...] | None = None
    """Further arguments of the install's `main.py`."""
    comfyui_max_jobs: int | None = None
    """The number of jobs after which the server of an install is restarted; None means never."""
    comfyui_max_memory_gib: float | None = None
    """The resident memory in GiB above which the server of an install is restarted."""
    comfyui_required_nodes: tuple[str, ...] | None = None
    """The node types without which the server is not ready."""
    comfyui_allowed_nodes: tuple[str, ...] | None = None
    """The only node types that graphs may have; None means all."""
    comfyui_denied_nodes: tuple[str, ...] | None = None
    """The node types that graphs may not have."""
    comfyui_partner_nodes: bool | None = None
    """Whether the server of an install has the nodes that send data to other companies."""
    owner: str | None = None
    """The only owner whose jobs the endpoint accepts; None means every owner."""
    checkpoint: str | None = None
    """The default checkpoint of diffusion requests; None means the first of `checkpoints`."""
    checkpoints: tuple[str, ...] | None = None
    """The checkpoints that jobs may use; None means all checkpoints of the models folder."""
    gpus: float | None = None
    """The number of GPUs of one worker. None means one GPU if the cluster has GPUs."""
    cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    """Other Ray resources of one worker."""
    labels: Mapping[str, str] | None = None
    """Ray labels that the node of a worker must have, with Ray's operators (`in(a,b)`, `!a`)."""
    min_workers: int = 1
    max_workers: int = 1
    jobs_per_worker: int = 0
    """The largest number of jobs that a worker runs at the same time; 0 means as many as it can."""
    idle_timeout_s: float | None = None
    """Seconds after which an idle worker that is not needed is closed; None means the setting."""
    job_timeout_s: float | None = None
    """The longest time in seconds from a job's submission to its end; None means the setting."""
    queue_timeout_s: float | None = None
    """The longest time in seconds from a job's submission to its first attempt; None means the
    job's time-out.
    """
    max_attempts: int | None = None
    """The largest number of attempts that are blamed on a job; None means the setting."""
    max_queued: int = 10_000
    max_pixels: int = 2**24
    """The largest width x height x batch of one job."""
    max_steps: int = 10_000
    max_cost: float | None = None
    """The largest cost of one job in megapixel-steps; 0 means no limit, None the setting."""
    precision: Precision | None = None
    """The precision of the UNets' weights; None means auto."""
    channels_last: bool | None = None
    """Whether UNets use the channels-last memory format."""
    compiler: str | None = None
    """The backend of torch.compile for UNets; None means that UNets are not compiled."""
    compatibility: Compatibility | None = None
    """The compatibility of diffusion requests that name none; None means the setting."""
    draining: bool = False
    """Whether the endpoint accepts no more jobs, and closes its workers when no jobs are left."""
    ends_at: datetime | None = None
    """The time at which waiting jobs are ended and the endpoint is removed; None means never."""

    def limits(self, settings: GraphSettings) -> dict[str, Any]:
        """Return the keyword arguments of the engine's `Limits`, for the API and the workers."""
        return {
            "max_side": settings.max_side_px,
            "max_steps": self.max_steps,
            "max_pixels": self.max_pixels,
            "max_cost": settings.max_cost if self.max_cost is None else self.max_cost,
        }

    def make(self) -> tuple[object, ...]:
        """Return the values whose change replaces the workers."""
        asked = [sorted((each or {}).items()) for each in (self.resources, self.labels)]
        unets = (self.precision or "auto", bool(self.channels_last), self.compiler)
        comfyui = (
            *(self.comfyui_url, self.comfyui_dir, self.comfyui_python, self.comfyui_args),
            *(self.comfyui_max_jobs, self.comfyui_max_memory_gib, self.comfyui_required_nodes),
            bool(self.comfyui_partner_nodes),
        )
        server = comfyui if self.engine == "comfyui" else ()
        return (self.gpus, self.cpus, *asked, *unets, *server)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEndpoint:
    """An endpoint, and the other columns of its row."""

    endpoint: Endpoint
    revision: int = 1
    """A number that increases by one with each change."""
    given: frozenset[str] = frozenset()
    """The members that were set explicitly. The default endpoint gets others from the settings."""
    applied: str | None = None
    """The digest of the endpoint's entry in the endpoints file when it was last applied."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An input file of one owner."""

    id: str
    """A UUIDv7, which sorts by the time of the upload."""
    owner: str
    name: str
    """A label that the owner chose. The label is never part of a path."""
    digest: str
    """`sha256:` and the hexadecimal digest of the stored file."""
    storage_key: str
    width: int
    """The width in pixels; 0 for a video or audio file, which is stored as it was sent."""
    height: int
    size_bytes: int
    created_at: datetime
    used_at: datetime
    """The last time at which a job with this file was accepted, or this file was uploaded."""
    replaced_at: datetime | None = None
    """The time at which this file lost its name, perhaps to another file."""


class FileKind(StrEnum):
    """Kinds of files of owners. Files of different kinds may have the same name."""

    DATA = "data"
    SETTING = "setting"


class FileOutcome(StrEnum):
    """The outcome of a change to a file of an owner."""

    DONE = "done"
    EXISTS = "exists"
    MISSING = "missing"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class UserFile:
    """A small file that a program of an owner has stored."""

    name: str
    size_bytes: int
    created_at: datetime
    changed_at: datetime


EVERY_OWNER = ""
"""The owner of a workflow that the keys of all owners may run."""


@dataclass(frozen=True, slots=True)
class WorkflowVersion:
    """A version of a named workflow. Its content never changes."""

    owner: str
    name: str
    version: int
    size_bytes: int
    created_at: datetime
    is_marked: bool
    """Whether the name without a version means this version. If no version is marked, the name
    means the newest one.
    """


class WorkflowOutcome(StrEnum):
    """The outcome of a change to a named workflow."""

    DONE = "done"
    EXISTS = "exists"
    """A new workflow has the name of an existing one."""
    MISSING = "missing"
    """The workflow was removed in the meantime."""
    CHANGED = "changed"
    """Another version was stored in the meantime."""
    FULL = "full"
    """The owner has reached a limit of workflows, versions or bytes."""
