"""`darkroom inspect`: shows the history of a job and its current state."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any

import typer

from cli.terminal import ExitCode, console, fail, printable, show_json, wants_json
from events.errors import ServiceError
from events.ids import is_job_id
from operations.inspection import Inspection, inspect_job
from operations.stores import open_stores
from settings.settings import Settings
from storage.images import ImageStoreError

RequestOption = Annotated[
    bool,
    typer.Option("--request", help="Show the request, with its prompts, and the callback URL."),
]


def inspect(request_id: str, with_request: RequestOption = False) -> None:
    """Show the history of a job, and what each store contains about it now.

    Reads the stores directly, with the settings of the service. Shows no prompts by default.
    """
    if not is_job_id(request_id):
        fail(f"{printable(request_id)} is not a request id", code=ExitCode.USAGE)
    try:
        found = asyncio.run(_inspect(Settings.load(), request_id, with_request=with_request))
    except (ServiceError, ImageStoreError) as error:
        fail(str(error), code=ExitCode.UNAVAILABLE)
    if found is None:
        fail(
            f"there is no job {request_id}; it may have been removed after its retention time",
            code=ExitCode.NOT_FOUND,
        )
    if wants_json():
        show_json(_body(found))
    else:
        for line in _lines(found):
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


async def _inspect(settings: Settings, job_id: str, *, with_request: bool) -> Inspection | None:
    async with open_stores(settings.log, settings.stores) as stores:
        return await inspect_job(stores, job_id, with_request=with_request)


def _gaps_s(found: Inspection) -> list[float]:
    """Return the seconds from the previous step to each step; 0 for the first step.

    A value may be negative, because processes with different clocks write the events.
    """
    times = [step.at for step in found.steps]
    return [0.0, *((after - before).total_seconds() for before, after in pairwise(times))]


def _body(found: Inspection) -> dict[str, Any]:
    steps = [
        asdict(step) | {"at": step.at.isoformat(), "after_s": round(gap_s, 6)}
        for step, gap_s in zip(found.steps, _gaps_s(found), strict=False)
    ]
    body = {"request_id": found.job_id, "steps": steps, "now": found.now}
    return body if found.request is None else body | found.request


def _lines(found: Inspection) -> list[str]:
    lines = []
    for step, gap_s in zip(found.steps, _gaps_s(found), strict=False):
        charged = {None: "", True: " [charged]", False: " [not charged]"}[step.charged]
        at = f"{step.at:%Y-%m-%d %H:%M:%S}.{step.at.microsecond // 1000:03}"
        lines.append(f"{at}  {gap_s:+10.3f} s  {step.who}: {step.what}{charged}")
    lines += ["", "Now:"]
    lines += [
        f"  {name}: {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in found.now.items()
    ]
    for name, value in (found.request or {}).items():
        lines.append(f"{name}: {json.dumps(value)}")
    return lines
