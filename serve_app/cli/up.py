"""`darkroom up`: everything on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import httpx
import typer
from rich.markup import escape

from engine.extensions.installed import Extension, ExtensionInvalid, installed_extensions
from events.errors import LogDiffers
from serve_app.cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    ensure_admin_key,
    note_shown,
    write_callback_secret,
)
from serve_app.cli.doctor import setup_warnings, show_warnings
from serve_app.cli.remote.endpoints import require_readable
from serve_app.cli.terminal import console, fail, printable, progress_console, show_json, wants_json
from serve_app.local.embedded import LOGS, AlreadyRunning, Embedded, Running
from serve_app.local.folders import UnsafeFolder, make_data_folder
from serve_app.local.local_ray import RayDidNotStart
from serve_app.local.log_file import NAME
from serve_app.local.nats_server import NatsDidNotStart
from serve_app.local.ports import PortTaken
from settings.settings import Settings

_READY_TIMEOUT_S = 120.0
_CANNOT_START = (
    AlreadyRunning,
    ExtensionInvalid,
    LogDiffers,
    NatsDidNotStart,
    RayDidNotStart,
    UnsafeFolder,
)


PortOption = Annotated[
    int | None, typer.Option(help="Of the HTTP API; default: DARKROOM_PORT, or 8000.")
]
ModelsOption = Annotated[
    Path | None,
    typer.Option("--models", help="Folder of the models; default: DARKROOM_MODELS_DIR, or models."),
]
LogOption = Annotated[
    bool, typer.Option("--log", help="Show the log here, too, with a line for each request.")
]


def up(port: PortOption = None, models: ModelsOption = None, log: LogOption = False) -> None:
    """Start everything on this machine and keep it running until Ctrl-C."""
    began = time.monotonic()
    given: dict[str, Any] = {"port": port, "models_dir": models, "log_requests": log or None}
    settings = _checked(
        Settings.load(**{name: value for name, value in given.items() if value is not None})
    )
    show_warnings(setup_warnings(settings))
    try:
        _run(settings, began, is_log_shown=log)
    except _CANNOT_START as error:
        fail(str(error))
    except PortTaken as error:
        fail(f"{error}: end that, or give another port by --port or DARKROOM_PORT")
    except KeyboardInterrupt:
        console.print("Stopped before it was up.")


def _run(settings: Settings, began: float, *, is_log_shown: bool) -> None:
    stop = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        """Once: a second signal finds everything being stopped."""
        if not stop.is_set():
            stop.set()
            raise KeyboardInterrupt

    def show(part: str) -> None:
        _on_signals(interrupt)  # again, since Ray sets its own as it starts
        status.update(f"Starting {part}")
        if not (console.is_terminal or wants_json()):
            console.print(f"Starting {part}")
        if stop.is_set():  # a library has swallowed it
            raise KeyboardInterrupt

    with ExitStack() as stack:
        with progress_console().status("Starting") as status:
            _on_signals(interrupt)
            os.umask(0o077)  # whatever is written here is this user's alone
            extensions = installed_extensions()
            make_data_folder(settings.stores.data_dir)
            fresh_key = asyncio.run(ensure_admin_key(settings.stores))
            show_line = _show_line if is_log_shown else None
            embedded = Embedded(settings, on_part=show, show_line=show_line)
            stack.callback(embedded.close)  # wherever the signal falls
            running = stack.enter_context(embedded)
            show("to answer")
            _wait_ready(running)
            _on_signals(lambda *_: stop.set())
        _print_screen(running, fresh_key, time.monotonic() - began, extensions=extensions)
        stop.wait()
        if not wants_json():
            console.print("Stopping.")


def _show_line(line: str) -> None:
    sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def _checked(settings: Settings) -> Settings:
    if (file := settings.default_endpoint.file) is not None:
        require_readable(file)
    return settings


def _on_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _wait_ready(running: Running) -> None:
    settings = running.settings
    give_up_at = time.monotonic() + _READY_TIMEOUT_S
    url = f"http://{settings.http.netloc}"
    with httpx.Client(base_url=url, timeout=2, trust_env=False) as client:
        while time.monotonic() < give_up_at:
            with suppress(httpx.TransportError):
                if client.get("/health/ready").is_success:
                    return
            time.sleep(0.1)
    fail(f"not ready within {_READY_TIMEOUT_S:g} s; see {_log_path(running)}")


def _print_screen(
    running: Running, fresh_key: str | None, took_s: float, *, extensions: Sequence[Extension]
) -> None:
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
        *(("Nodes of", f"{each} ({len(each.node_types)})") for each in extensions),
        ("Database", _without_password(stores.effective_database_url)),
        ("Ray", running.ray_address),
        ("Log", f"{_log_path(running)}; of Ray itself in {running.ray_logs}"),
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
            "\nThe admin key, and the secret that signs its callbacks, are shown this once; they "
            f"are also in {key_path} and {secret_path}.",
            soft_wrap=True,
        )
        note_shown(stores)


def _show_screen(lines: Sequence[tuple[str, str]], took_s: float) -> None:
    console.print(f"\n[bold green]Darkroom is up[/] after {took_s:.1f} s. Ctrl-C stops it.\n")
    for name, value in lines:
        # Never folded: what is there is to be copied, and found by programs.
        console.print(f"[bold]{name:<17}[/]{escape(value)}", soft_wrap=True, highlight=False)


def _log_path(running: Running) -> Path:
    return running.settings.stores.data_dir / LOGS / NAME


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://{tail}" if at else url
