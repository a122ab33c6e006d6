"""`darkroom generate` and `darkroom result`: run a job and save its pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from darkroom_client import Darkroom, Result

from cli.connection import KeyOption, UrlOption, job_path, open_client
from cli.progress import Interrupted, run_job
from cli.terminal import ExitCode, console, fail, progress_console, show_json, wants_json
from cli.uploads import store_files
from settings.keys import ImageFormat

OutOption = Annotated[Path, typer.Option(help="Folder for the pictures.")]
KeepOption = Annotated[bool, typer.Option("--keep", help="Do not cancel the job at Ctrl-C.")]
PromptArgument = Annotated[str | None, typer.Argument(help="What the picture shows.")]
WorkflowOption = Annotated[
    Path | None,
    typer.Option(help="Run this node graph in ComfyUI's API format instead of a prompt."),
]
ImageOption = Annotated[
    list[Path] | None,
    typer.Option(help="Upload this input image before the job is submitted. May be repeated."),
]
_USUAL = typer.Option(show_default="the default of the checkpoint")
UsualSteps = Annotated[int | None, _USUAL]
UsualNumber = Annotated[float | None, _USUAL]
UsualName = Annotated[str | None, _USUAL]
CallbackOption = Annotated[
    str | None, typer.Option(help="URL to which the result is sent when the job has ended.")
]
FormatOption = Annotated[
    ImageFormat | None,
    typer.Option(help="Format of the pictures. Default: the format of the key, or PNG."),
]
QualityOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=100, help="Quality of WebP and JPEG images. A WebP of 100 is lossless."
    ),
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
    """Run a job, show its progress and save its pictures."""
    flavour, body = _request(
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
        query = query_of(endpoint, callback_url, image_format, image_quality)
        path = f"/{flavour}/v1/generate"
        show(submit(client, path, body, query, is_kept=keep), client, out)


def _sampling(
    steps: int | None, cfg_scale: float | None, sampler: str | None, scheduler: str | None
) -> dict[str, Any]:
    return {
        "steps": steps,
        "cfg_scale": cfg_scale,
        "sampler_name": sampler,
        "scheduler": scheduler,
    }


def _request(workflow: Path | None, **parameters: Any) -> tuple[str, dict[str, Any]]:
    """Return the flavour and the body of the request, without parameters that are None."""
    given = {name: value for name, value in parameters.items() if value is not None}
    if ("prompt" in given) == (workflow is not None):
        fail("give either a prompt or --workflow", code=ExitCode.USAGE)
    if workflow is None:
        return "diffusion", given
    return "workflow", _read_graph(workflow)


def query_of(
    endpoint: str | None,
    callback_url: str | None,
    image_format: ImageFormat | None,
    quality: int | None,
) -> dict[str, str]:
    """Return the query of a generate call."""
    asked = {
        "endpoint": endpoint,
        "callback_url": callback_url,
        "image_format": image_format,
        "image_quality": quality,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


def submit(
    client: Darkroom,
    path: str,
    body: dict[str, Any],
    query: dict[str, str],
    *,
    is_kept: bool,
) -> dict[str, Any]:
    """Submit a job and return its result. After Ctrl-C the job is cancelled, unless it is kept."""
    try:
        return run_job(
            client,
            path,
            body,
            console=progress_console(),
            with_previews=not wants_json(),
            **query,
        )
    except Interrupted as interrupted:
        _leave(client, interrupted.request_id, is_kept=is_kept)


def _leave(client: Darkroom, request_id: str, *, is_kept: bool) -> NoReturn:
    """Cancel the job after Ctrl-C, unless it is kept, and exit."""
    if is_kept:
        text = f"The job continues. Its result: darkroom result {request_id}"
    elif client.call("POST", f"{job_path(request_id)}/cancel")["cancelled"]:
        text = f"{request_id} is cancelled."
    else:
        text = f"{request_id} had already ended. Its result: darkroom result {request_id}"
    fail(text, code=ExitCode.INTERRUPTED, request_id=request_id)


def result(
    request_id: str, out: OutOption = Path("pictures"), url: UrlOption = None, key: KeyOption = None
) -> None:
    """Show the state of a job and save its finished pictures."""
    with open_client(url, key) as client:
        show(client.call("GET", f"{job_path(request_id)}/result"), client, out)


def _read_graph(path: Path) -> dict[str, Any]:
    try:
        graph: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fail(f"{path}: {error}", code=ExitCode.USAGE)
    return graph if "prompt" in graph else {"prompt": graph}


def show(result: dict[str, Any], client: Darkroom, out: Path) -> None:
    """Save the images and print the result. With `--json`, its member `files` has their paths."""
    if wants_json():
        show_json(result | {"files": [str(path) for path in save_images(client, result, out)]})
    else:
        console.print_json(data=result)
        for path in save_images(client, result, out):
            console.print(f"saved {path}", soft_wrap=True)
    if result["status"] == 2:
        raise typer.Exit(ExitCode.FAILED)


def save_images(client: Darkroom, result: dict[str, Any], folder: Path) -> list[Path]:
    """Download the finished images of `result` to `folder`. Raises DarkroomError."""
    paths = []
    for image in Result.of(result).images:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{result['request_id']}_{image.index}{image.suffix}"
        path.write_bytes(client.download(image))
        paths.append(path)
    return paths
