"""The Ray of this machine: started for this process, and ended with it."""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from serve_app.local.descendants import descendants, end_processes
from serve_app.local.nats_server import NatsServer, write_private
from serve_app.local.unused_processes import end_unused_processes
from settings.endpoint import EndpointSettings
from settings.settings import Settings

_TRIES = 3
"""On a machine that is very busy Ray is not up within the times that it gives itself."""


class RayDidNotStart(RuntimeError):
    """Ray was not up within its own times, time after time."""


class LocalRay:
    def __init__(self, settings: Settings, folder: Path, nats: NatsServer | None) -> None:
        """`folder`: where Ray keeps its sessions; `nats`: what is not Ray's, if it is ours."""
        self._settings = settings
        self._folder = folder
        self._nats = nats
        self._others = descendants()

    def start(self, on_retry: Callable[[str], None]) -> str:
        """Returns its address. `on_retry` is called with a text before each further try.

        Raises RayDidNotStart.
        """
        # Before Ray is imported: the import reads the token.
        _require_token(self._settings.stores.data_dir / "ray.token")
        _share_import_path()
        start_persistently(self._init, stop=self.stop, on_retry=on_retry)
        end_unused_processes(descendants() - self._others)
        import ray

        return str(ray.get_runtime_context().gcs_address)

    def stop(self) -> None:
        """End Ray, and every process that was started since this was made but nats-server."""
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
            num_cpus=_logical_cpus(self._settings.default_endpoint),
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
    """Call `start`, and where it raises `stop` and then again. Raises RayDidNotStart."""
    for number in range(1, _TRIES + 1):
        try:
            start()
        except Exception as error:
            stop()
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            if number == _TRIES:
                raise RayDidNotStart(
                    f"Ray did not start in {_TRIES} tries: {why} Is this machine very busy, or "
                    "short of memory? Start again once it is not."
                ) from error
            on_retry(f"Ray once more, since it did not start: {why}")
        else:
            return


def has_gpu() -> bool:
    """Whether the Ray that runs has one."""
    import ray

    return bool(ray.cluster_resources().get("GPU"))


def _require_token(path: Path) -> None:
    """Ray takes commands only with this token, which only its owner may read."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN_PATH", str(path.absolute()))
    token_path = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    if not token_path.exists():
        write_private(token_path, secrets.token_hex(32))


def _share_import_path() -> None:
    """Workers import our packages from the same folder as this process."""
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def _logical_cpus(endpoint: EndpointSettings) -> int:
    """CPUs for every worker of the endpoint: Ray counts them, and does not measure their use."""
    return max(os.cpu_count() or 1, math.ceil(endpoint.cpus * endpoint.max_workers))
