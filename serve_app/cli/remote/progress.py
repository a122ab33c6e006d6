"""A job that is submitted and waited for."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client, ClientError
from serve_app.cli.remote.half_blocks import can_show
from serve_app.cli.remote.job_view import JobView
from serve_app.cli.remote.streams import job_events

_WAIT_S = 20.0


class Interrupted(Exception):
    """Ctrl-C, while a job is waited for."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


def run_job(
    client: Client,
    flavour: str,
    body: dict[str, Any],
    *,
    console: Console,
    with_previews: bool = True,
    **query: str,
) -> dict[str, Any]:
    """Submit, show the progress, return the result of the ended job.

    `with_previews`: show what its picture looks like so far, on a terminal that can.
    Raises ClientError, Interrupted.
    """
    if with_previews and can_show(console):
        query["preview"] = "true"
    request_id = client.submit(flavour, body, **query)["request_id"]
    try:
        with JobView(console, f"{flavour} {request_id}") as view:
            _follow(client, request_id, view)
            while not (result := client.result(request_id, flavour, wait_s=_WAIT_S))["status"]:
                pass
            return result
    except KeyboardInterrupt:
        raise Interrupted(request_id) from None


def _follow(client: Client, request_id: str, view: JobView) -> None:
    """Until its end, or for as long as there are streams. Raises ClientError."""
    try:
        for event in job_events(client, request_id):
            view.note(event)
    except ClientError as error:
        if error.code is not ExitCode.LIMITED:  # else there are too many: its result is waited for
            raise
