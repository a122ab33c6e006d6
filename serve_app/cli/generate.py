"""`darkroom generate` and `darkroom result`: run a job, save its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from serve_app.cli.client import Client, Interrupted, run_job
from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.terminal import console, fail

OutOption = Annotated[Path, typer.Option(help="Folder for the pictures.")]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Ctrl-C leaves the job to run on; else it cancels it.")
]
PromptArgument = Annotated[str | None, typer.Argument(help="What the picture shows.")]
WorkflowOption = Annotated[
    Path | None, typer.Option(help="A node graph in ComfyUI's API format, instead.")
]

_INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""


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
    keep: KeepOption = False,
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
        _run(client, flavour, body, endpoint=endpoint, out=out, is_kept=keep)


def _run(
    client: Client, flavour: str, body: dict[str, Any], *, endpoint: str, out: Path, is_kept: bool
) -> None:
    try:
        result = run_job(client, flavour, body, endpoint=endpoint, console=console)
    except Interrupted as interrupted:
        _leave(client, interrupted.request_id, is_kept=is_kept)
    _show(result, client, out)


def _leave(client: Client, request_id: str, *, is_kept: bool) -> NoReturn:
    """After Ctrl-C."""
    if is_kept:
        text = f"The job goes on. Its result: darkroom result {request_id}"
    elif client.cancel(request_id):
        text = f"{request_id} is cancelled."
    else:
        text = f"{request_id} had ended before. Its result: darkroom result {request_id}"
    fail(text, code=_INTERRUPTED)


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
