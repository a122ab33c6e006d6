"""`darkroom watch`: shows the events of jobs as they happen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from darkroom_client import Event

from cli.connection import KeyOption, UrlOption, job_path, open_client
from cli.jobs import STATUS, StateOption
from cli.terminal import ExitCode, console, printable, show_json, wants_json

IdArgument = Annotated[
    str | None, typer.Argument(help="Id of one job. Default: all jobs of the key's owner.")
]
EndpointOption = Annotated[str | None, typer.Option(help="Show only jobs of this endpoint.")]
SinceOption = Annotated[str | None, typer.Option(help="Continue after the event with this id.")]
_SHOWN = ("message", "index", "url", "attempt", "queue_position", "starts_in_s", "images")
"""The members of an event that are shown as text."""


def watch(  # noqa: PLR0917 - typer makes the options from the arguments
    request_id: IdArgument = None,
    endpoint: EndpointOption = None,
    state: StateOption = None,
    since: SinceOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show the events of a job, or of all jobs of the key's owner, as they happen.

    One job is shown from its beginning to its end. All jobs are shown from now on until Ctrl-C. If
    the connection is lost, a new connection continues after the last event. With `--json` each line
    is an event.
    """
    with open_client(url, key) as client:
        if request_id is not None:
            # This call ends the command if the job does not exist.
            client.call("GET", job_path(request_id))
            last = _show_all(client.watch(request_id))
            if last in {"failed", "cancelled"}:
                raise typer.Exit(ExitCode.FAILED)
            return
        filters = {"endpoint": endpoint, "status": state and STATUS[state], "cursor": since}
        # This call ends the command if the service does not answer.
        client.call("GET", "/v1/jobs", query={"limit": 1})
        _show_all(client.watch_all(**{k: v for k, v in filters.items() if v is not None}))


def _show_all(events: Iterable[Event]) -> str | None:
    """Print the events. Returns the name of the last event, or None."""
    last = None
    for event in events:
        last = event.name
        if wants_json():
            show_json({"event": event.name, "id": event.id, "data": event.data}, indent=None)
        elif event.name != "preview":
            line = printable(_line(event))
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return last


def _line(event: Event) -> str:
    data = event.data.get("data", event.data)
    words = [str(event.data.get("time", "")).partition(".")[0], _request_id(event), event.name]
    if event.name == "progress":
        words.append(_progress(data))
    else:
        words += [f"{name}={data[name]}" for name in _SHOWN if name in data]
    return "  ".join(word for word in words if word)


def _request_id(event: Event) -> str:
    return str(event.data.get("subject") or event.data.get("request_id") or "")


def _progress(data: Mapping[str, Any]) -> str:
    steps = f" (step {data['step']} of {data['steps']})" if data.get("steps") else ""
    return f"{100 * data.get('progress', 0.0):.0f} %{steps}"
