"""What the database keeps beside the read models: API keys, inference endpoints, uploads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Scope(StrEnum):
    GENERATE = "generate"
    READ = "read"
    CANCEL = "cancel"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key as it is stored: never the key itself, only a hash of its secret."""

    id: str
    owner: str
    name: str
    secret_sha256: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    def is_live(self, now: datetime) -> bool:
        expired = self.expires_at is not None and now >= self.expires_at
        return self.revoked_at is None and not expired


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A self-service inference deployment: which model, on what, how many at once."""

    id: str
    checkpoint: str | None = None
    """Default checkpoint of the diffusion flavour; None: the first of the models folder."""
    gpus: float | None = None
    """Of one worker; None: one where the cluster has any."""
    cpus: float = 1.0
    min_workers: int = 1
    max_workers: int = 1
    jobs_per_worker: int = 4
    max_queued: int = 10_000
    max_pixels: int = 2**24
    """Width x height x batch of one job."""
    max_steps: int = 10_000


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
    """When a job was last accepted that names it; before the first, when it was uploaded."""
    replaced_at: datetime | None = None
    """From then on its name stands for another file, or for none."""
