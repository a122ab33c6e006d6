"""WorkerConfig: the configuration of the processes of a worker."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from events.store.records import DEFAULT_ENDPOINT, Endpoint
from settings.engine import EngineSettings
from settings.graph import GraphSettings
from settings.log import LogFormat, LogSettings
from settings.settings import Settings
from settings.version import VERSION
from settings.workers import WorkerSettings

COMFYUI = "comfyui"
"""The id of the endpoint with the ComfyUI install of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The configuration of an engine process. It contains no secret."""

    endpoint: Endpoint
    workers: WorkerSettings
    engine: EngineSettings
    graph: GraphSettings
    models_dir: Path
    comfyui_dir: Path | None
    """The ComfyUI install of the settings, whose tokenizers the engine may use."""
    log_format: LogFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration of a worker.

    A worker with an outdated configuration is replaced, so this class has only values on which a
    worker depends. Of the endpoint, only the values of `Endpoint.make` are compared. The only
    secret is the URL of NATS, which job actors need.
    """

    endpoint: Endpoint
    workers: WorkerSettings
    engine: EngineSettings
    graph: GraphSettings
    log: LogSettings
    images_url: str
    models_dir: Path
    comfyui_dir: Path | None
    log_format: LogFormat
    is_traced: bool
    """Whether events contain data that only traces need."""
    version: str = VERSION
    """The version of Darkroom that the processes run."""

    def for_engine(self) -> EngineConfig:
        return EngineConfig(
            endpoint=self.endpoint,
            workers=self.workers,
            engine=self.engine,
            graph=self.graph,
            models_dir=self.models_dir,
            comfyui_dir=self.comfyui_dir,
            log_format=self.log_format,
        )

    def digest(self) -> str:
        """Return the `release`, a hyphen, and a digest of `endpoint.make()`."""
        return f"{self.release()}-{_digest(repr(self.endpoint.make()))}"

    def release(self) -> str:
        """Return a digest of all values except those of the endpoint.

        Workers of the same release can run the same jobs, even if the values of their endpoints
        differ.
        """
        # The URL of NATS is added separately, because `repr` hides secrets.
        nats_url = self.log.nats_url.get_secret_value() if self.log.nats_url else ""
        rest = replace(self, endpoint=Endpoint(self.endpoint.id))
        return _digest(f"{rest!r} {nats_url}")


def configured_endpoints(settings: Settings) -> dict[str, Endpoint]:
    """Return the endpoints of the settings by id: `default`, and `comfyui` if there is an install.

    On one GPU their workers share it. Otherwise a worker takes one GPU, if Ray has GPUs.
    """
    given, comfyui = settings.default_endpoint, settings.comfyui
    share = 0.5 if comfyui.dir is not None and settings.ray.num_gpus == 1 else None
    default = Endpoint(
        id=DEFAULT_ENDPOINT,
        fallback=None if comfyui.dir is None else COMFYUI,
        checkpoint=given.checkpoint,
        gpus=share if given.gpus is None else given.gpus,
        cpus=given.cpus,
        min_workers=given.min_workers,
        max_workers=given.max_workers,
        jobs_per_worker=given.jobs_per_worker,
        precision="auto",
        channels_last=False,
    )
    if comfyui.dir is None:
        return {default.id: default}
    other = Endpoint(
        id=COMFYUI,
        engine="comfyui",
        comfyui_dir=str(comfyui.dir),
        comfyui_python=None if comfyui.python is None else str(comfyui.python),
        comfyui_args=comfyui.args or None,
        gpus=share,
    )
    return {default.id: default, other.id: other}


def worker_config(settings: Settings, endpoint: Endpoint) -> WorkerConfig:
    return WorkerConfig(
        endpoint=endpoint,
        workers=settings.workers,
        engine=settings.engine,
        graph=settings.graph,
        log=settings.log,
        images_url=settings.stores.effective_images_url,
        models_dir=settings.stores.models_dir,
        comfyui_dir=settings.comfyui.dir,
        log_format=settings.telemetry.log_format,
        is_traced=settings.telemetry.otlp_url is not None,
    )


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
