"""WorkerConfig: what the processes of a worker are made from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from events.store.records import Endpoint
from settings.engine import EngineSettings
from settings.graph import GraphSettings
from settings.log import LogFormat, LogSettings
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
    log_format: LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """A worker that was made from another value is replaced, so nothing else belongs here. Of its
    endpoint that is `make` alone.

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
    log_format: LogFormat
    is_traced: bool
    """Whether events say what only traces tell."""
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
            log_format=self.log_format,
        )

    def digest(self) -> str:
        """Names how a worker is made: by `release`, and by its endpoint's `make`."""
        return f"{self.release()}-{_digest(repr(self.endpoint.make()))}"

    def release(self) -> str:
        """Of every value that is not its endpoint's, the one that `repr` hides too.

        Workers that share it run the same jobs alike, however their endpoint has them made.
        """
        nats_url = self.log.nats_url.get_secret_value() if self.log.nats_url else ""
        rest = replace(self, endpoint=Endpoint(self.endpoint.id))
        return _digest(f"{rest!r} {nats_url}")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
