"""`darkroom`: start the service, manage keys and jobs, run a job."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import httpx
import typer
from pydantic import ValidationError
from rich.table import Table

from serve_app.cli import endpoints as endpoint_commands
from serve_app.cli import jobs as job_commands
from serve_app.cli import keys as key_commands
from serve_app.cli.admin_key import ADMIN_KEY_FILE, ensure_admin_key
from serve_app.cli.backup import backup, restore
from serve_app.cli.client import Client, run_job
from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.endpoints import require_readable
from serve_app.cli.inspect import inspect
from serve_app.cli.rebuild import rebuild
from serve_app.cli.terminal import console, fail, stderr
from serve_app.cli.verify import verify
from serve_app.local.embedded import AlreadyRunning, Embedded, Running
from serve_app.local.folders import UnsafeFolder, make_data_folder
from serve_app.local.nats_server import NatsDidNotStart
from serve_app.local.ports import PortTaken
from settings.settings import Settings

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(key_commands.app, name="keys")
app.add_typer(job_commands.app, name="jobs")
app.add_typer(endpoint_commands.app, name="endpoints")
app.command()(inspect)
app.command()(verify)
app.command()(rebuild)
app.command()(backup)
app.command()(restore)

_READY_TIMEOUT_S = 120.0


def main() -> None:
    """The console script. Prints one line for each setting that is not valid."""
    try:
        app()
    except ValidationError as error:
        for line in error.errors():
            name = "DARKROOM_" + "_".join(map(str, line["loc"])).upper()
            stderr.print(f"{name}: {line['msg']}", style="red", markup=False)
        raise SystemExit(2) from None


@app.command()
def up() -> None:
    """Start everything on this machine and keep it running until Ctrl-C."""
    settings = _checked(Settings.load())
    began = time.monotonic()
    stop = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        """Once: a second signal finds everything being stopped."""
        if not stop.is_set():
            stop.set()
            raise KeyboardInterrupt

    def show(part: str) -> None:
        _on_signals(interrupt)  # again, since Ray sets its own as it starts
        status.update(f"Starting {part}")
        if stop.is_set():  # a library has swallowed it
            raise KeyboardInterrupt

    try:
        with ExitStack() as stack:
            with console.status("Starting") as status:
                _on_signals(interrupt)
                os.umask(0o077)  # whatever is written here is this user's alone
                make_data_folder(settings.stores.data_dir)
                fresh_key = asyncio.run(ensure_admin_key(settings.stores))
                embedded = Embedded(settings, on_part=show)
                stack.callback(embedded.close)  # wherever the signal falls
                running = stack.enter_context(embedded)
                show("to answer")
                _wait_ready(running)
                _on_signals(lambda *_: stop.set())
            _print_screen(running, fresh_key, time.monotonic() - began)
            stop.wait()
            console.print("Stopping.")
    except (AlreadyRunning, NatsDidNotStart, UnsafeFolder) as error:
        fail(str(error))
    except PortTaken as error:
        fail(f"{error}: end that, or set DARKROOM_PORT to another port")
    except KeyboardInterrupt:
        console.print("Stopped before it was up.")


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
    fail(f"not ready within {_READY_TIMEOUT_S:g} s; see {_logs(running)}")


def _print_screen(running: Running, fresh_key: str | None, took_s: float) -> None:
    settings = running.settings
    stores, nats_url = settings.stores, settings.log.nats_url
    table = Table.grid(padding=(0, 2))
    for name, value in (
        ("HTTP API", settings.http.effective_public_url),
        (
            "Documentation",
            f"{settings.http.effective_public_url}/docs" if settings.http.docs else "-",
        ),
        ("Event log", _without_password(nats_url.get_secret_value() if nats_url else "")),
        ("Subscribers", f"{stores.nats_dir / 'reader.url'} (events.>)" if running.nats else "-"),
        ("Images", stores.effective_images_url),
        ("Models", str(stores.models_dir.absolute())),
        ("Database", _without_password(stores.effective_database_url)),
        ("Ray", running.ray_address),
        ("Logs", str(_logs(running))),
        ("HAProxy metrics", f"http://127.0.0.1:{running.metrics_port}/metrics"),
        ("Admin key", fresh_key or f"in {stores.data_dir / ADMIN_KEY_FILE}"),
    ):
        table.add_row(f"[bold]{name}", value)
    console.print(f"\n[bold green]Darkroom is up[/] after {took_s:.1f} s. Ctrl-C stops it.\n")
    console.print(table, soft_wrap=True)
    if fresh_key:
        path = stores.data_dir / ADMIN_KEY_FILE
        console.print(f"\nThe admin key is shown this once; it is also in {path}.")


def _logs(running: Running) -> Path:
    return running.ray_folder / "session_latest" / "logs"


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    return f"{head.split('://')[0]}://{tail}" if at else url


# Jobs.

OutOption = Annotated[Path, typer.Option(help="Folder for the pictures.")]
PromptArgument = Annotated[str | None, typer.Argument(help="What the picture shows.")]
WorkflowOption = Annotated[
    Path | None, typer.Option(help="A node graph in ComfyUI's API format, instead.")
]


@app.command()
def generate(  # noqa: PLR0917 - typer makes the options from the arguments
    prompt: PromptArgument = None,
    workflow: WorkflowOption = None,
    negative_prompt: str = "",
    checkpoint: str | None = None,
    width: int = 64,
    height: int = 64,
    steps: int = 20,
    cfg_scale: float = 7.0,
    sampler: str = "Euler",
    scheduler: str = "Automatic",
    batch_size: int = 1,
    seed: int = -1,
    endpoint: str = "default",
    out: OutOption = Path("pictures"),
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Run a job, show its progress, save its pictures."""
    if (prompt is None) == (workflow is None):
        fail("give either a prompt or --workflow, one of them")
    parameters = {
        "prompt": prompt,
        "negative_prompt": negative_prompt,
        "width": width,
        "height": height,
        "steps": steps,
        "cfg_scale": cfg_scale,
        "sampler_name": sampler,
        "scheduler": scheduler,
        "batch_size": batch_size,
        "seed": seed,
    } | ({} if checkpoint is None else {"sd_model_checkpoint": checkpoint})
    body = parameters if workflow is None else _read_graph(workflow)
    flavour = "diffusion" if workflow is None else "workflow"
    with open_client(url, key) as client:
        _show(run_job(client, flavour, body, endpoint=endpoint, console=console), client, out)


@app.command()
def result(
    request_id: str, out: OutOption = Path("pictures"), url: UrlOption = None, key: KeyOption = None
) -> None:
    """Show where a job is; save the pictures it has."""
    with open_client(url, key) as client:
        _show(client.result(request_id), client, out)


def _read_graph(path: Path) -> dict[str, Any]:
    try:
        graph: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}")
    return graph if "prompt" in graph else {"prompt": graph}


def _show(result: dict[str, Any], client: Client, out: Path) -> None:
    console.print_json(data=result)
    for path in client.save(result, out):
        console.print(f"saved {path}", soft_wrap=True)
    if result["status"] == 2:
        raise typer.Exit(1)
