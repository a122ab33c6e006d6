"""Embedded: the whole service on one machine, with nats-server, a local Ray and Serve."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGTERM
from types import FrameType, TracebackType

from pydantic import SecretStr

from local.folders import keep_logs, make_data_folder, temporary_folder
from local.haproxy import serve_host
from local.local_ray import LocalRay, gpu_count
from local.log_file import LogFile, Show
from local.nats_server import NatsServer, write_private
from local.ports import held_port, held_ports
from local.processes import stop_stale_processes
from local.serve_environment import PORTS, configure_serve, haproxy_folder
from settings.constant import constant
from settings.graph import MAX_COST_WITHOUT_GPU
from settings.settings import Settings, forget_secrets
from settings.stores import StoreSettings

logger = logging.getLogger(__name__)

LOGS = "logs"
"""The folder of log files, relative to the data folder."""
RAY_ADDRESS_FILE = "ray.address"
"""The file with the address of the last started Ray, relative to the data folder."""
_LOCK = "lock"
_WATCH_PERIOD_S = 0.2
_LONGEST_WATCH_PAUSE_S = 5.0
_WRITE_CHECK_PERIOD_S = constant("WRITE_CHECK_PERIOD_S", 5.0)
_LONGEST_WRITE_CHECK_PERIOD_S = 300.0
_WRITE_CHECK_TIMEOUT_S = 5.0


class AlreadyRunning(RuntimeError):
    """Another `darkroom up` uses this data folder."""


@dataclass(frozen=True, slots=True)
class Running:
    """The processes that `darkroom up` started, and their addresses."""

    settings: Settings
    nats: NatsServer | None
    metrics_port: int
    ray_address: str
    ray_logs: Path
    """The folder in which Ray stores the output of each process."""


class Embedded:
    """Starts nats-server, Ray and Serve, and stops them at the end of a `with` block."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_part: Callable[[str], None] = lambda _: None,
        show_line: Show | None = None,
    ) -> None:
        """`on_part` is called with the name of each part before the part starts.

        `show_line` is called with each line of the log, in a separate thread.
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
        """Stop all parts, and ignore SIGINT and SIGTERM until the parts have stopped."""
        with signals_ignored():
            self._stack.close()

    def _start(self) -> Running:
        settings = self._settings
        # Child processes inherit the environment, so they get the secrets as arguments instead.
        forget_secrets(os.environ)
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
            self._stack.enter_context(restarted_on_failure(nats))
        self._keep_log(settings.stores, ray_folder)
        self._on_part("Ray")
        address = self._start_ray(settings, ray_folder, nats)
        (data_dir / RAY_ADDRESS_FILE).write_text(address)
        settings = without_worker_reaper(with_gpus(settings, gpu_count()))
        self._on_part("the application")
        self._start_serve(settings)
        return Running(settings, nats, metrics_port, address, _logs_in(ray_folder))

    def _temporary_folders(self, data_dir: Path) -> Path:
        """End the processes of an earlier start, and return the path of a new folder for Ray."""
        folder = temporary_folder(data_dir)
        # Other users can enter the folder that Ray makes, so it is inside a private folder.
        ray_folder = folder / "ray"

        def tidy() -> None:
            stop_stale_processes(haproxy_folder(data_dir))
            stop_stale_processes(ray_folder)
            keep_logs(_logs_in(ray_folder), data_dir / LOGS / "ray")
            shutil.rmtree(folder, ignore_errors=True)

        tidy()
        temporary_folder(data_dir)
        self._stack.callback(tidy)
        return ray_folder

    def _keep_log(self, settings: StoreSettings, ray_folder: Path) -> None:
        log = LogFile(
            _logs_in(ray_folder),
            settings.data_dir / LOGS,
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
        # The proxies may still start after a time-out. `darkroom up` waits until the service is
        # ready.
        with suppress(TimeoutError):
            serve.start(http_options=options)
        serve.run(build_with(settings), name="darkroom", route_prefix="/", blocking=False)


def _logs_in(ray_folder: Path) -> Path:
    return ray_folder / "session_latest" / "logs"


def with_secret(settings: Settings) -> Settings:
    """Return the settings with a secret: the given one, or else the one in `<data>/secret`.

    This file is created at the first start.
    """
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


def with_gpus(settings: Settings, count: int) -> Settings:
    """Return the settings with the number of GPUs that Ray has found.

    Without a GPU, `max_cost` is lower if no limit was set.
    """
    ray = settings.ray.model_copy(update={"num_gpus": count})
    settings = settings.model_copy(update={"ray": ray})
    if count or "max_cost" in settings.graph.model_fields_set:
        return settings
    graph = settings.graph.model_copy(update={"max_cost": MAX_COST_WITHOUT_GPU})
    return settings.model_copy(update={"graph": graph})


def is_up(data_dir: Path) -> bool:
    """Return whether `darkroom up` runs on this folder."""
    try:
        with (data_dir / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def without_worker_reaper(settings: Settings) -> Settings:
    """Return the settings without the reaper of workers, because the workers end with Ray."""
    dispatch = settings.dispatch.model_copy(update={"workers_kept_s": 0.0})
    return settings.model_copy(update={"dispatch": dispatch})


@contextmanager
def _exclusive(data_dir: Path) -> Generator[None]:
    """Lock the folder until the `with` block or the process ends. Raises AlreadyRunning."""
    with (data_dir / _LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise AlreadyRunning(f"another `darkroom up` uses {data_dir}") from error
        yield


@contextmanager
def restarted_on_failure(nats: NatsServer) -> Generator[None]:
    """Restart nats-server on the same port within the `with` block, whenever it dies or refuses all
    writes because an earlier write failed.

    After a failed write, the restart waits until the disk has room again.
    """
    stop = threading.Event()

    def watch() -> None:
        pause_s = _WATCH_PERIOD_S
        check_s = _WRITE_CHECK_PERIOD_S
        check_at = time.monotonic() + check_s
        while not stop.wait(pause_s):
            reason, has_room = None, False
            if nats.is_running() and time.monotonic() >= check_at:
                reason = _reason_to_restart(nats)
                has_room = reason is not None and nats.has_room()
                # If a restart did not help, the next one follows later.
                longer_s = min(2 * check_s, _LONGEST_WRITE_CHECK_PERIOD_S)
                check_s = longer_s if has_room else _WRITE_CHECK_PERIOD_S
                check_at = time.monotonic() + check_s
            if nats.is_running() and not has_room:
                pause_s = _WATCH_PERIOD_S
                continue
            fields = {"action": "nats_restart", "reason": reason or "it died"}
            logger.warning("nats-server is restarted", extra=fields)
            pause_s = min(2 * pause_s, _LONGEST_WATCH_PAUSE_S)
            try:
                nats.spawn()
            except Exception:
                logger.exception("nats-server did not restart", extra={"action": "nats_restart"})

    thread = threading.Thread(target=watch, name="nats-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _reason_to_restart(nats: NatsServer) -> str | None:
    """Return why the server refuses writes; None if it accepts them, or if this is not known."""
    try:
        return asyncio.run(_write_error(nats.url))
    except Exception:  # Without this, the watch would end, and a dead server would stay dead.
        logger.exception("nats-server was not checked", extra={"action": "nats_check"})
        return None


async def _write_error(url: str) -> str | None:
    """Return why the server refuses writes; None if it accepts them or does not answer."""
    # These modules load nats-py, which takes long, and `darkroom up` first says what it waits for.
    from events.bus.bus import Bus
    from events.bus.health import write_error

    bus = Bus(url, name="nats-watch", prepares_streams=False)
    bus.start()
    try:
        async with asyncio.timeout(_WRITE_CHECK_TIMEOUT_S):
            await bus.wait_connected()
            return await write_error(bus)
    except TimeoutError:
        return None
    finally:
        await bus.close()


@contextmanager
def signals_ignored() -> Generator[None]:
    """Ignore SIGINT and SIGTERM within the `with` block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _ignore) for number in (SIGINT, SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass
