"""`darkroom generate` and `darkroom result`: run a job, save its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client
from serve_app.cli.remote.progress import Interrupted, run_job
from serve_app.cli.remote.uploads import store_files
from serve_app.cli.terminal import console, fail, progress_console, show_json, wants_json
from settings.keys import ImageFormat

OutOption = Annotated[Path, typer.Option(help="Folder for the pictures.")]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Ctrl-C leaves the job to run on; else it cancels it.")
]
PromptArgument = Annotated[str | None, typer.Argument(help="What the picture shows.")]
WorkflowOption = Annotated[
    Path | None, typer.Option(help="A node graph in ComfyUI's API format, instead.")
]
ImageOption = Annotated[
    list[Path] | None,
    typer.Option(help="Upload this input image first; may be repeated."),
]
_USUAL = typer.Option(show_default="what is usual for the checkpoint")
UsualSteps = Annotated[int | None, _USUAL]
UsualNumber = Annotated[float | None, _USUAL]
UsualName = Annotated[str | None, _USUAL]
CallbackOption = Annotated[
    str | None, typer.Option(help="Address that is told of the end of the job.")
]
FormatOption = Annotated[
    ImageFormat | None, typer.Option(help="Of the pictures; else that of the key, PNG as a rule.")
]
QualityOption = Annotated[
    int | None,
    typer.Option(min=1, max=100, help="Of WebP and JPEG; a WebP of 100 is lossless."),
]


def generate(  # noqa: PLR0917 - typer makes the options from the arguments
    prompt: PromptArgument = None,
    workflow: WorkflowOption = None,
    negative_prompt: str = "",
    checkpoint: str | None = None,
    width: int = 64,
    height: int = 64,
    steps: UsualSteps = None,
    cfg_scale: UsualNumber = None,
    sampler: UsualName = None,
    scheduler: UsualName = None,
    batch_size: int = 1,
    seed: int = -1,
    endpoint: str = "default",
    image: ImageOption = None,
    callback_url: CallbackOption = None,
    image_format: FormatOption = None,
    image_quality: QualityOption = None,
    out: OutOption = Path("pictures"),
    keep: KeepOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Run a job, show its progress, save its pictures."""
    flavour, body = _asked(
        workflow,
        prompt=prompt,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        **_sampling(steps, cfg_scale, sampler, scheduler),
        batch_size=batch_size,
        seed=seed,
        sd_model_checkpoint=checkpoint,
    )
    with open_client(url, key) as client:
        store_files(client, image or ())
        query = _query(endpoint, callback_url, image_format, image_quality)
        _show(_run(client, flavour, body, query, is_kept=keep), client, out)


def _sampling(
    steps: int | None, cfg_scale: float | None, sampler: str | None, scheduler: str | None
) -> dict[str, Any]:
    return {
        "steps": steps,
        "cfg_scale": cfg_scale,
        "sampler_name": sampler,
        "scheduler": scheduler,
    }


def _asked(workflow: Path | None, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """The flavour and the body of the request, which leaves out what is not given."""
    given = {name: value for name, value in parameters.items() if value is not None}
    if ("prompt" in given) == (workflow is not None):
        fail("give either a prompt or --workflow, one of them", code=ExitCode.USAGE)
    if workflow is None:
        return "diffusion", given
    return "workflow", _read_graph(workflow)


def _query(
    endpoint: str, callback_url: str | None, image_format: ImageFormat | None, quality: int | None
) -> dict[str, str]:
    """What is asked for beside the body."""
    asked = {
        "endpoint": endpoint,
        "callback_url": callback_url,
        "image_format": image_format,
        "image_quality": quality,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def _run(
    client: Client,
    flavour: str,
    body: dict[str, Any],
    query: dict[str, str],
    *,
    is_kept: bool,
) -> dict[str, Any]:
    """The result."""
    try:
        return run_job(
            client,
            flavour,
            body,
            console=progress_console(),
            with_previews=not wants_json(),
            **query,
        )
    except Interrupted as interrupted:
        _leave(client, interrupted.request_id, is_kept=is_kept)


def _leave(client: Client, request_id: str, *, is_kept: bool) -> NoReturn:
    """After Ctrl-C."""
    if is_kept:
        text = f"The job goes on. Its result: darkroom result {request_id}"
    elif client.cancel(request_id):
        text = f"{request_id} is cancelled."
    else:
        text = f"{request_id} had ended before. Its result: darkroom result {request_id}"
    fail(text, code=ExitCode.INTERRUPTED, request_id=request_id)


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
        fail(f"{path}: {error}", code=ExitCode.USAGE)
    return graph if "prompt" in graph else {"prompt": graph}


def _show(result: dict[str, Any], client: Client, out: Path) -> None:
    """With `--json` the result has the paths of its files, too, as `files`."""
    if wants_json():
        show_json(result | {"files": [str(path) for path in client.save(result, out)]})
    else:
        console.print_json(data=result)
        for path in client.save(result, out):
            console.print(f"saved {path}", soft_wrap=True)
    if result["status"] == 2:
        raise typer.Exit(ExitCode.FAILED)
