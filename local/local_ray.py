"""LocalRay: a Ray that is started for this process and ends with it."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from local.nats_server import NatsServer, write_private
from local.processes import descendants, end_processes, end_unused_processes
from settings.settings import Settings

_TRIES = 3
"""The number of attempts to start Ray, which may exceed its own time limits on a busy machine."""


class RayDidNotStart(RuntimeError):
    """Ray did not start after several attempts."""


class LocalRay:
    def __init__(self, settings: Settings, folder: Path, nats: NatsServer | None) -> None:
        """Ray keeps its sessions in `folder`. `stop` does not end `nats`."""
        self._settings = settings
        self._folder = folder
        self._nats = nats
        self._others = descendants()

    def start(self, on_retry: Callable[[str], None]) -> str:
        """Start Ray and return its address. Raises RayDidNotStart.

        `on_retry` is called with the reason before each retry.
        """
        # The token must be set before Ray is imported, because the import reads it.
        _require_token(self._settings.stores.data_dir / "ray.token")
        _share_import_path()
        start_persistently(self._init, stop=self.stop, on_retry=on_retry)
        end_unused_processes(descendants() - self._others)
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def stop(self) -> None:
        """End Ray, and all processes except nats-server that were started since `__init__`."""
        import ray

        nats_pid = self._nats.pid if self._nats else 0
        started = {each for each in descendants() - self._others if each.pid != nats_pid}
        ray.shutdown()
        end_processes(started)

    def _init(self) -> None:
        import ray

        ray.init(
            address="local",
            namespace="serve",
            num_gpus=self._settings.ray.num_gpus,
            num_cpus=_logical_cpus(self._settings),
            resources={"darkroom_cpu": 1000},
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(self._folder),
        )


def start_persistently(
    start: Callable[[], None], *, stop: Callable[[], None], on_retry: Callable[[str], None]
) -> None:
    """Call `start` up to `_TRIES` times, and `stop` after each failure. Raises RayDidNotStart."""
    for number in range(1, _TRIES + 1):
        try:
            start()
        except Exception as error:
            stop()
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            if number == _TRIES:
                raise RayDidNotStart(
                    f"Ray did not start in {_TRIES} attempts: {why} The machine may be very busy, "
                    "or short of memory. Start again when it is not."
                ) from error
            on_retry(f"Ray is started again, because it did not start: {why}")
        else:
            return


def gpu_count() -> int:
    """Return the number of GPUs of the local Ray."""
    import ray

    return int(ray.cluster_resources().get("GPU", 0))


def _require_token(path: Path) -> None:
    """Make Ray accept commands only with the token in this file, which only this user can read."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(path.absolute()))
    token_path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    if not token_path.exists():
        write_private(token_path, secrets.token_hex(32))


def _share_import_path() -> None:
    """Make the processes of Ray import the packages from the same folder as this process."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def _logical_cpus(settings: Settings) -> int:
    """Return enough CPUs for every worker. Ray does not assign CPUs, so they need not exist."""
    endpoint = settings.default_endpoint
    cpus = max(os.cpu_count() or 1, math.ceil(endpoint.cpus * endpoint.max_workers))
    # One more for the worker of `comfyui`.
    return cpus if settings.comfyui.dir is None else cpus + 1
