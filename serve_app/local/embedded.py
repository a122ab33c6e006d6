"""The whole system on one machine: nats-server, local Ray, the Serve application."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import FrameType, TracebackType

from pydantic import SecretStr

from serve_app.local.folders import make_data_folder, put_logs_away, temporary_folder
from serve_app.local.haproxy import serve_host
from serve_app.local.local_ray import LocalRay, has_gpu
from serve_app.local.log_file import LogFile, Show
from serve_app.local.nats_server import NatsServer, write_private
from serve_app.local.ports import held_port, held_ports
from serve_app.local.serve_environment import PORTS, configure_serve, haproxy_folder
from serve_app.local.stale_processes import stop_stale_processes
from settings.graph import MAX_COST_WITHOUT_GPU
from settings.settings import Settings, forget_secrets
from settings.stores import StoreSettings

logger = logging.getLogger(__name__)

LOGS = "logs"
"""In the data folder."""
RAY_ADDRESS_FILE = "ray.address"
"""There, too: where the Ray of the last start is."""
_LOCK = "lock"
_WATCH_PERIOD_S = 0.2
_LONGEST_WATCH_PAUSE_S = 5.0


class AlreadyRunning(RuntimeError):
    """Another `darkroom up` works on this data folder."""


@dataclass(frozen=True, slots=True)
class Running:
    """Where the parts run."""

    settings: Settings
    nats: NatsServer | None
    metrics_port: int
    ray_address: str
    ray_logs: Path
    """Where Ray has its own logs, and the files that each process writes to."""


class Embedded:
    """`with Embedded(settings) as running:` starts everything, and stops it at the end."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_part: Callable[[str], None] = lambda _: None,
        show_line: Show | None = None,
    ) -> None:
        """`on_part` is called with the name of each part before it starts, and `show_line`, in a
        thread of its own, with each line of the log.
        """
        self._settings = settings
        self._on_part = on_part
        self._show_line = show_line
        self._stack = ExitStack()

    def __enter__(self) -> Running:
        try:
            return self._start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything; a second signal does not keep it from being done."""
        with undisturbed():
            self._stack.close()

    def _start(self) -> Running:
        settings = self._settings
        forget_secrets(os.environ)  # every part that needs one is given it
        data_dir = settings.stores.data_dir
        make_data_folder(data_dir)
        self._stack.enter_context(_exclusive(data_dir))
        ray_folder = self._temporary_folders(data_dir)
        self._stack.enter_context(held_port(settings.http.host, settings.http.port))
        ports = self._stack.enter_context(held_ports(PORTS))
        metrics_port = configure_serve(settings.http, data_dir, ports)
        settings = with_secret(settings)
        nats = None
        if settings.log.nats_url is None:
            self._on_part("nats-server")
            nats = NatsServer(settings.stores.nats_dir)
            self._stack.callback(nats.stop)
            nats.start()
            settings = _with_nats(settings, nats.url)
            self._stack.enter_context(watched(nats))
        from serve_app.operations.places import prepare_log

        asyncio.run(prepare_log(settings.log, settings.stores))
        self._keep_log(settings.stores, ray_folder)
        self._on_part("Ray")
        address = self._start_ray(settings, ray_folder, nats)
        (data_dir / RAY_ADDRESS_FILE).write_text(address)
        settings = ending_with_ray(fitted(settings, has_gpu=has_gpu()))
        self._on_part("the application")
        self._start_serve(settings)
        return Running(settings, nats, metrics_port, address, _logs_in(ray_folder))

    def _temporary_folders(self, data_dir: Path) -> Path:
        """Ray's folder. What an earlier start left there, or still runs there, is ended first."""
        folder = temporary_folder(data_dir)
        # Ray opens its own folder to everybody, so it gets one inside of a private one.
        ray_folder = folder / "ray"

        def tidy() -> None:
            stop_stale_processes(haproxy_folder(data_dir))
            stop_stale_processes(ray_folder)
            put_logs_away(_logs_in(ray_folder), data_dir / LOGS / "ray")
            shutil.rmtree(folder, ignore_errors=True)

        tidy()
        temporary_folder(data_dir)
        self._stack.callback(tidy)
        return ray_folder

    def _keep_log(self, settings: StoreSettings, ray_folder: Path) -> None:
        log = LogFile(
            _logs_in(ray_folder),
            settings.data_dir / LOGS,
            max_bytes=settings.log_file_bytes,
            files=settings.log_files,
            show=self._show_line,
        )
        self._stack.callback(log.close)
        log.start()

    def _start_ray(self, settings: Settings, folder: Path, nats: NatsServer | None) -> str:
        ray = LocalRay(settings, folder, nats)
        self._stack.callback(ray.stop)
        return ray.start(self._on_part)

    def _start_serve(self, settings: Settings) -> None:
        from ray import serve
        from ray.serve.config import HTTPOptions

        from serve_app.app import build_with

        options = HTTPOptions(host=serve_host(settings.http), port=settings.http.port)
        with suppress(TimeoutError):  # of its proxies: whoever waits for an answer waits for them
            serve.start(http_options=options)
        serve.run(build_with(settings), name="darkroom", route_prefix="/", blocking=False)


def _logs_in(ray_folder: Path) -> Path:
    return ray_folder / "session_latest" / "logs"


def with_secret(settings: Settings) -> Settings:
    """With the secret of the settings, or else of `<data>/secret`, made at the first start."""
    if settings.stores.secret is not None:
        return settings
    path = settings.stores.data_dir / "secret"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, secrets.token_urlsafe(32))
    secret = SecretStr(path.read_text().strip())
    stores = settings.stores.model_copy(update={"secret": secret})
    return settings.model_copy(update={"stores": stores})


def _with_nats(settings: Settings, url: str) -> Settings:
    log = settings.log.model_copy(update={"nats_url": SecretStr(url)})
    return settings.model_copy(update={"log": log})


def fitted(settings: Settings, *, has_gpu: bool) -> Settings:
    """With the limits that suit a machine without a GPU, where none are given."""
    if has_gpu or "max_cost" in settings.graph.model_fields_set:
        return settings
    graph = settings.graph.model_copy(update={"max_cost": MAX_COST_WITHOUT_GPU})
    return settings.model_copy(update={"graph": graph})


def is_up(data_dir: Path) -> bool:
    """Whether a `darkroom up` works on this folder. Nothing is made where there is none."""
    try:
        with (data_dir / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def ending_with_ray(settings: Settings) -> Settings:
    """Without the process that would give workers back after the end of the application."""
    dispatch = settings.dispatch.model_copy(update={"workers_kept_s": 0.0})
    return settings.model_copy(update={"dispatch": dispatch})


@contextmanager
def _exclusive(data_dir: Path) -> Generator[None]:
    """Lock the folder; the lock ends with the process. Raises AlreadyRunning."""
    with (data_dir / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunning(f"another `darkroom up` works on {data_dir}") from error
        yield


@contextmanager
def watched(nats: NatsServer) -> Generator[None]:
    """Start nats-server again, on the same port, when it dies.

    It is not waited for: nats-server is alive while it reads a large store for minutes.
    """
    stop = threading.Event()

    def watch() -> None:
        pause_s = _WATCH_PERIOD_S
        while not stop.wait(pause_s):
            if nats.is_running():
                pause_s = _WATCH_PERIOD_S
                continue
            logger.warning("nats-server died", extra={"action": "nats_restart"})
            pause_s = min(2 * pause_s, _LONGEST_WATCH_PAUSE_S)
            try:
                nats.spawn()
            except Exception:
                logger.exception("nats-server is not back", extra={"action": "nats_restart"})

    thread = threading.Thread(target=watch, name="nats-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def undisturbed() -> Generator[None]:
    """SIGINT and SIGTERM wait meanwhile; those that come are then forgotten."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _forget) for number in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget(_number: int, _frame: FrameType | None) -> None:
    pass
