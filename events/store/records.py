"""What the database keeps beside the read models: API keys, inference endpoints, uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from events.types import Priority
from settings.graph import Compatibility, GraphSettings
from settings.keys import ImageFormat

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
    """What a key may ask for. None is the default of the settings."""

    rate_per_s: float | None = None
    """Requests; 0: any number."""
    burst: int | None = None
    """Requests at once after a pause."""
    max_open_jobs: int | None = None
    """Jobs that wait or run; 0: any number."""
    endpoints: tuple[str, ...] | None = None
    """Their ids, or `*`."""
    callback_hosts: tuple[str, ...] | None = None
    """Host names, `*.example.com` (every name below `example.com`), or `*`."""
    max_cost: float | None = None
    """Megapixel-steps of one job; 0: as many as its endpoint takes."""
    embed_metadata: bool | None = None
    """Whether images say how they were made."""
    image_format: ImageFormat | None = None
    """Of images whose request names none."""
    image_quality: int | None = None
    """1 to 100, of WebP and JPEG images whose request names none."""
    weight: float | None = None
    """Of its owner's turns on an endpoint, while others wait; None is 1."""
    priority: Priority | None = None
    """The class of its jobs; None is normal."""

    def over(self, defaults: KeyLimits) -> KeyLimits:
        """These limits, with `defaults` for those that are None."""
        said = {name: value for name, value in asdict(self).items() if value is not None}
        return replace(defaults, **said)

    def allow_endpoint(self, id: str) -> bool:
        return self.endpoints is None or not {ANY, id}.isdisjoint(self.endpoints)

    def allow_callback_host(self, host: str) -> bool:
        """`host` as `callback_address.Target` has it."""
        return self.callback_hosts is None or any(
            pattern in {ANY, host} or (pattern[:2] == "*." and host.endswith(pattern[1:]))
            for pattern in self.callback_hosts
        )


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored: never the key itself, only a hash of its secret."""

    id: str
    owner: str
    name: str
    secret_sha256: str = field(repr=False)
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str | None = None
    """Id of the key that replaced it by rotation."""
    limits: KeyLimits = KeyLimits()

    def is_live(self, now: datetime) -> bool:
        expired = self.expires_at is not None and now >= self.expires_at
        return self.revoked_at is None and not expired


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """What the jobs and the uploads of an owner take, until the row of each is removed."""

    log_bytes: int = 0
    result_bytes: int = 0
    upload_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A self-service inference deployment: which models, on what, how many at once."""

    id: str
    owner: str | None = None
    """Whose jobs alone it takes; None: those of every owner."""
    checkpoint: str | None = None
    """Default checkpoint of the diffusion flavour; None: the first of those that it allows."""
    checkpoints: tuple[str, ...] | None = None
    """Those that its jobs may use; None: all of the models folder."""
    gpus: float | None = None
    """Of one worker; None: one if the cluster has any."""
    cpus: float = 1.0
    resources: Mapping[str, float] | None = None
    """Resources of Ray that one worker takes besides."""
    labels: Mapping[str, str] | None = None
    """Labels of Ray that the node of a worker must have, with its operators (`in(a,b)`, `!a`)."""
    min_workers: int = 1
    max_workers: int = 1
    jobs_per_worker: int = 0
    """At the same time; 0: as many as suit its device."""
    idle_timeout_s: float | None = None
    """How long a worker above the minimum may be idle; None: as the settings have it."""
    job_timeout_s: float | None = None
    """From the submission of a job to its end; None: as the settings have it."""
    queue_timeout_s: float | None = None
    """From the submission of a job to its first attempt; None: as long as the job may take."""
    max_attempts: int | None = None
    """How many attempts may be charged to a job; None: as the settings have it."""
    max_queued: int = 10_000
    max_pixels: int = 2**24
    """Width x height x batch of one job."""
    max_steps: int = 10_000
    max_cost: float | None = None
    """Megapixel-steps of one job; 0: any number; None: as the settings have it."""
    precision: Precision | None = None
    """Of the UNets' weights; None: auto."""
    channels_last: bool | None = None
    """UNets with their channels innermost."""
    compiler: str | None = None
    """Backend of torch.compile for UNets; None: they are not compiled."""
    compatibility: Compatibility | None = None
    """Whose meaning diffusion requests have that name none; None: as the settings have it."""
    draining: bool = False
    """It takes no more jobs, and keeps no worker that has none."""
    ends_at: datetime | None = None
    """When the jobs end that still wait for it; then it is removed. None: it stays."""

    def limits(self, settings: GraphSettings) -> dict[str, Any]:
        """The keywords of the engine's `Limits`, for the edge and the workers alike."""
        return {
            "max_nodes": settings.max_nodes,
            "max_node_id_chars": settings.max_node_id_chars,
            "max_side": settings.max_side_px,
            "max_steps": self.max_steps,
            "max_batch": settings.max_batch,
            "max_text_chars": settings.max_prompt_chars,
            "max_pixels": self.max_pixels,
            "max_cost": settings.max_cost if self.max_cost is None else self.max_cost,
            "max_live_bytes": settings.max_live_bytes,
            "max_conditioning_rows": settings.max_conditioning_rows,
            "max_tokens": settings.max_tokens,
            "max_merged_models": settings.max_merged_models,
            "max_outputs": settings.max_outputs,
        }

    def make(self) -> tuple[object, ...]:
        """What its workers are made from: a change of anything else leaves them as they are."""
        asked = [sorted((each or {}).items()) for each in (self.resources, self.labels)]
        unets = (self.precision or "auto", bool(self.channels_last), self.compiler)
        return (self.gpus, self.cpus, *asked, *unets)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEndpoint:
    """An endpoint with what its row knows of it."""

    endpoint: Endpoint
    revision: int = 1
    """One more with each change."""
    given: frozenset[str] = frozenset()
    """The members that somebody gave it. The default endpoint has the others from the settings."""
    applied: str | None = None
    """Digest of what the endpoints file said of it when that was last applied."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An input image of one owner."""

    id: str
    """UUIDv7: sorts by the time of the upload."""
    owner: str
    name: str
    """A label that the owner chose; never part of a path."""
    digest: str
    """`sha256:` and hex, of the file as it is stored."""
    storage_key: str
    width: int
    height: int
    size_bytes: int
    created_at: datetime
    used_at: datetime
    """When a job that names it was last accepted, or the same file was last uploaded."""
    replaced_at: datetime | None = None
    """When its name was given to another file, or removed."""


class FileKind(StrEnum):
    """Of the files of owners. Names of one kind are apart from those of another."""

    DATA = "data"
    SETTING = "setting"


class Kept(StrEnum):
    """What became of a change to a file of an owner."""

    DONE = "done"
    EXISTS = "exists"
    MISSING = "missing"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class UserFile:
    """A small file that a program of an owner stores."""

    name: str
    size_bytes: int
    created_at: datetime
    changed_at: datetime
