"""WorkerConfig: what the processes of a worker are made from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from events.store.records import Endpoint
from settings.engine import EngineSettings
from settings.graph import GraphSettings
from settings.log import LogSettings
from settings.version import VERSION
from settings.workers import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What an engine is made from. It reads models and nothing else, so no secret is here."""

    endpoint: Endpoint
    workers: WorkerSettings
    engine: EngineSettings
    graph: GraphSettings
    models_dir: Path
    models_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """A worker that was made from another value is replaced, so nothing else belongs here.

    Its one secret is the URL of NATS, which job actors write to.
    """

    endpoint: Endpoint
    workers: WorkerSettings
    engine: EngineSettings
    graph: GraphSettings
    log: LogSettings
    images_url: str
    images_retry_s: float
    models_dir: Path
    models_timeout_s: float
    version: str = VERSION
    """The version of the program that its processes run."""

    def for_engine(self) -> EngineConfig:
        return EngineConfig(
            endpoint=self.endpoint,
            workers=self.workers,
            engine=self.engine,
            graph=self.graph,
            models_dir=self.models_dir,
            models_timeout_s=self.models_timeout_s,
        )

    def digest(self) -> str:
        """Of every value, the one that `repr` hides too."""
        nats_url = self.log.nats_url.get_secret_value() if self.log.nats_url else ""
        return hashlib.blake2b(f"{self!r} {nats_url}".encode(), digest_size=4).hexdigest()
