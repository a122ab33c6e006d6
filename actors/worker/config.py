"""WorkerConfig: what the processes of a worker are made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from events.store.records import Endpoint
from settings.engine import EngineSettings
from settings.graph import GraphSettings
from settings.log import LogSettings
from settings.version import VERSION
from settings.workers import WorkerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """A worker that was made from another value is replaced, so nothing else belongs here."""

    endpoint: Endpoint
    workers: WorkerSettings
    engine: EngineSettings
    graph: GraphSettings
    log: LogSettings
    images_url: str
    models_dir: Path
    version: str = VERSION
    """The version of the program that its processes run."""
