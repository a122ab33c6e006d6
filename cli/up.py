"""`darkroom up`: runs everything on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import httpx
import typer
from rich.markup import escape

from cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    ensure_admin_key,
    note_shown,
    write_callback_secret,
)
from cli.doctor import setup_warnings, show_warnings
from cli.terminal import ExitCode, console, fail, printable, progress_console, show_json, wants_json
from comfyui.errors import StartFailed
from comfyui.own_server import Install
from engine.interface import EngineError, installed_extensions
from events.errors import DatabaseUnavailable, OlderData
from events.store.database import Database
from local.embedded import LOGS, AlreadyRunning, Embedded, Running
from local.folders import UnsafeFolder, UnwritableFolder, make_data_folder, require_room
from local.haproxy import TooFewFiles
from local.local_ray import RayDidNotStart
from local.log_file import NAME
from local.nats_server import NatsDidNotStart
from local.ports import PortTaken
from settings.settings import Settings
from settings.stores import SQLITE_FILE, StoreSettings

_READY_TIMEOUT_S = 120.0
_COMFYUI_NODES_TIMEOUT_S = 30.0
_COMFYUI_PERIOD_S = 1.0
_COMFYUI_PATIENCE_S = 20.0
"""Seconds after which it is printed why the ComfyUI server is not ready."""
_CANNOT_START = (
    AlreadyRunning,
    EngineError,
    NatsDidNotStart,
    OlderData,
    RayDidNotStart,
    TooFewFiles,
    UnsafeFolder,
    UnwritableFolder,
)


PortOption = Annotated[
    int | None, typer.Option(help="Port of the HTTP API. Default: DARKROOM_PORT, or 8000.")
]
ModelsOption = Annotated[
    Path | None,
    typer.Option("--models", help="Folder of the models. Default: DARKROOM_MODELS_DIR, or models."),
]
ComfyUIOption = Annotated[
    Path | None,
    typer.Option(
        "--comfyui",
        help="Folder of a ComfyUI install, which runs the workflows that only its server can run. "
        "Default: DARKROOM_COMFYUI_DIR.",
    ),
]
LogOption = Annotated[
    bool, typer.Option("--log", help="Show the log in the terminal, with a line for each request.")
]


def up(
    port: PortOption = None,
    models: ModelsOption = None,
    comfyui: ComfyUIOption = None,
    log: LogOption = False,
) -> None:
    """Start everything on this machine and keep it running until Ctrl-C."""
    began = time.monotonic()
    given: dict[str, Any] = {
        "port": port,
        "models_dir": models,
        "comfyui_dir": comfyui,
        "log_requests": log or None,
    }
    settings = _checked(
        Settings.load(**{name: value for name, value in given.items() if value is not None})
    )
    show_warnings(setup_warnings(settings))
    try:
        asyncio.run(_require_current_data(settings.stores))
        _run(settings, began, is_log_shown=log)
    except _CANNOT_START as error:
        fail(str(error))
    except PortTaken as error:
        fail(f"{error}. End that program, or set another port by --port or DARKROOM_PORT.")
    except KeyboardInterrupt:
        console.print("Stopped before the service was up.")


async def _require_current_data(stores: StoreSettings) -> None:
    """Raise OlderData if the database is too old. A database that does not answer is no error."""
    if stores.database_url is None and not (stores.data_dir / SQLITE_FILE).exists():
        return
    database = Database(stores.effective_database_url)
    try:
        with suppress(DatabaseUnavailable):
            await database.require_current()
    finally:
        await database.close()


def _run(settings: Settings, began: float, *, is_log_shown: bool) -> None:
    stop = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        """Interrupt the start at the first signal. At later signals it is already interrupted."""
        if not stop.is_set():
            stop.set()
            raise KeyboardInterrupt

    def show(part: str) -> None:
        # The handlers are set again for each part, because Ray replaces them.
        _on_signals(interrupt)
        status.update(f"Starting {part}")
        if not (console.is_terminal or wants_json()):
            console.print(f"Starting {part}")
        if stop.is_set():  # A library has caught the exception of `interrupt`.
            raise KeyboardInterrupt

    with ExitStack() as stack:
        with progress_console().status("Starting") as status:
            _on_signals(interrupt)
            os.umask(0o077)  # With this mask, only this user can read the new files.
            nodes = {str(each): len(each.node_types) for each in installed_extensions()}
            make_data_folder(settings.stores.data_dir)
            require_room(settings.stores.data_dir)
            fresh_key = asyncio.run(ensure_admin_key(settings.stores))
            show_line = _show_line if is_log_shown else None
            embedded = Embedded(settings, on_part=show, show_line=show_line)
            # This callback stops the parts even if a signal arrives while they start.
            stack.callback(embedded.close)
            running = stack.enter_context(embedded)
            show("to answer")
            _wait_ready(running)
            _on_signals(lambda *_: stop.set())
        _print_screen(running, fresh_key, time.monotonic() - began, nodes=nodes)
        if settings.comfyui.dir is not None and not wants_json():
            follow_comfyui(running, stop)
        stop.wait()
        if not wants_json():
            console.print("Stopping.")


def _show_line(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def _checked(settings: Settings) -> Settings:
    if (file := settings.default_endpoint.file) is not None:
        from cli.endpoints import require_readable  # The import is here, because it loads FastAPI.

        require_readable(file)
    if (folder := settings.comfyui.dir) is not None:
        try:
            Install(folder, settings.comfyui.python).interpreter()
        except StartFailed as error:
            fail(str(error), code=ExitCode.USAGE)
    return settings


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _wait_ready(running: Running) -> None:
    settings = running.settings
    give_up_at = time.monotonic() + _READY_TIMEOUT_S
    url = f"http://{settings.http.netloc}"
    reason = ""
    with httpx.Client(base_url=url, timeout=2, trust_env=False) as client:
        while time.monotonic() < give_up_at:
            with suppress(httpx.TransportError, ValueError):
                answer = client.get("/health/ready")
                if answer.is_success:
                    return
                reason = f" {answer.json()['error']['details']}"
            time.sleep(0.1)
    log_path = _log_path(running)
    fail(f"the service was not ready within {_READY_TIMEOUT_S:g} s; see {log_path}.{reason}")


def follow_comfyui(running: Running, stop: threading.Event) -> None:
    """Print why the ComfyUI server is not ready yet, and what it has when it is ready."""
    settings = running.settings
    key_path = settings.stores.data_dir / ADMIN_KEY_FILE
    if not key_path.exists():
        return
    headers = {"Authorization": f"Bearer {key_path.read_text().strip()}"}
    url = f"http://{settings.http.netloc}"
    trouble, since, told = None, time.monotonic(), None
    with httpx.Client(base_url=url, headers=headers, timeout=5, trust_env=False) as client:
        while not stop.wait(_COMFYUI_PERIOD_S):
            with suppress(httpx.HTTPError):
                worker = _comfyui_worker(client)
                if worker.get("trouble") != trouble:
                    trouble, since = worker.get("trouble"), time.monotonic()
                has_waited = time.monotonic() - since > _COMFYUI_PATIENCE_S
                if worker.get("state") == "ready":
                    server = worker.get("server")
                    if not server:  # The endpoint has Darkroom's own engine.
                        return
                    nodes = _comfyui_nodes(client)
                    if nodes is not None or has_waited:
                        _show_comfyui(server, nodes)
                        return
                elif trouble and has_waited and trouble != told:
                    told = trouble
                    _say(f"ComfyUI is not ready: {trouble}")


def _comfyui_worker(client: httpx.Client) -> dict[str, Any]:
    """Return the first worker of the endpoint `comfyui`, or nothing. Raises HTTPError."""
    answer = client.get("/v1/endpoints/comfyui").raise_for_status()
    workers: list[dict[str, Any]] = answer.json().get("workers") or [{}]
    return workers[0]


def _comfyui_nodes(client: httpx.Client) -> int | None:
    """Return the number of node types of the endpoint `comfyui`, or None if it is not known yet."""
    try:
        answer = client.get(
            "/v1/object_info", params={"endpoint": "comfyui"}, timeout=_COMFYUI_NODES_TIMEOUT_S
        )
    except httpx.HTTPError:
        return None
    return len(answer.json()) if answer.is_success else None


def _show_comfyui(server: Mapping[str, Any], nodes: int | None) -> None:
    count = "" if nodes is None else f", with {nodes} node types"
    name = " ".join(filter(None, ("ComfyUI", server.get("version"))))
    _say(f"{name} is ready{count}.")
    if failed := server.get("failed_imports"):
        _say(f"Packs that could not be imported: {', '.join(failed)}.")


def _say(text: str) -> None:
    console.print(printable(text), soft_wrap=True, markup=False, highlight=False)


def _print_screen(
    running: Running, fresh_key: str | None, took_s: float, *, nodes: Mapping[str, int]
) -> None:
    """Print the addresses of the service. `nodes` maps packages to their numbers of node types."""
    settings = running.settings
    stores, nats_url = settings.stores, settings.log.nats_url
    secret = write_callback_secret(stores)
    key_path, secret_path = (stores.data_dir / n for n in (ADMIN_KEY_FILE, CALLBACK_SECRET_FILE))
    lines = (
        ("HTTP API", settings.http.effective_public_url),
        (
            "Documentation",
            f"{settings.http.effective_public_url}/docs" if settings.http.docs else "-",
        ),
        ("Event log", _without_password(nats_url.get_secret_value() if nats_url else "")),
        ("Subscribers", f"{stores.nats_dir / 'reader.url'} (events.>)" if running.nats else "-"),
        ("Images", stores.effective_images_url),
        ("Models", str(stores.models_dir.absolute())),
        *(("Nodes of", f"{package} ({count})") for package, count in nodes.items()),
        ("Database", _without_password(stores.effective_database_url)),
        ("Ray", running.ray_address),
        ("Log", f"{_log_path(running)}; the logs of Ray itself are in {running.ray_logs}"),
        ("Metrics", f"{settings.http.effective_public_url}/metrics"),
        ("HAProxy metrics", f"http://127.0.0.1:{running.metrics_port}/metrics"),
        ("Admin key", fresh_key or f"in {key_path}"),
        ("Callback secret", secret if fresh_key else f"in {secret_path}"),
    )
    if wants_json():
        show_json(dict(lines))
        if fresh_key:
            note_shown(stores)
        return
    _show_screen(lines, took_s)
    if fresh_key:
        console.print(
            "\nThe admin key and the secret that signs its callbacks are shown only now. They "
            f"are also in {key_path} and {secret_path}.",
            soft_wrap=True,
        )
        note_shown(stores)


def _show_screen(lines: Sequence[tuple[str, str]], took_s: float) -> None:
    console.print(f"\n[bold green]Darkroom is up[/] after {took_s:.1f} s. Ctrl-C stops it.\n")
    for name, value in lines:
        # Long lines are not wrapped, so that people can copy values and programs can read them.
        console.print(f"[bold]{name:<17}[/]{escape(value)}", soft_wrap=True, highlight=False)


def _log_path(running: Running) -> Path:
    return running.settings.stores.data_dir / LOGS / NAME


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://{tail}" if at else url
