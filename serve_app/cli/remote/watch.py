"""`darkroom watch`: what happens to jobs, as it happens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.jobs import STATUS, StateOption
from serve_app.cli.remote.streams import StreamEvent, job_events, owner_events
from serve_app.cli.terminal import console, printable, show_json, wants_json

IdArgument = Annotated[str | None, typer.Argument(help="Of one job; without it, of all of yours.")]
EndpointOption = Annotated[str | None, typer.Option(help="All jobs of this endpoint alone.")]
SinceOption = Annotated[
    str | None, typer.Option(help="All jobs: what followed the event of this id.")
]
_TOLD = ("message", "index", "url", "attempt", "queue_position", "starts_in_s", "images")
"""The members of events that people are shown."""


def watch(  # noqa: PLR0917 - typer makes the options from the arguments
    request_id: IdArgument = None,
    endpoint: EndpointOption = None,
    state: StateOption = None,
    since: SinceOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Tell what happens to a job, or to all of yours, as it happens.

    A job is told from its beginning to its end, all jobs from now on until Ctrl-C. A connection
    that is lost is made again, and goes on where it was. With `--json` each line is an event.
    """
    with open_client(url, key) as client:
        if request_id is not None:
            last = _show_all(job_events(client, request_id))
            if last in {"failed", "cancelled"}:
                raise typer.Exit(ExitCode.FAILED)
            return
        filters = {"endpoint": endpoint, "status": state and STATUS[state], "cursor": since}
        _show_all(owner_events(client, {k: v for k, v in filters.items() if v is not None}))


def _show_all(events: Iterable[StreamEvent]) -> str | None:
    """The name of the last one."""
    last = None
    for event in events:
        last = event.name
        if wants_json():
            show_json({"event": event.name, "id": event.id, "data": event.data}, indent=None)
        elif event.name != "preview":
            line = printable(_line(event))
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return last


def _line(event: StreamEvent) -> str:
    told = event.data.get("data", event.data)
    words = [str(event.data.get("time", "")).partition(".")[0], event.request_id, event.name]
    if event.name == "progress":
        words.append(_progress(told))
    else:
        words += [f"{name}={told[name]}" for name in _TOLD if name in told]
    return "  ".join(word for word in words if word)


def _progress(told: dict[str, Any]) -> str:
    steps = f" (step {told['step']} of {told['steps']})" if told.get("steps") else ""
    return f"{100 * told.get('progress', 0.0):.0f} %{steps}"
