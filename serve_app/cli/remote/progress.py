"""A job that is submitted and waited for, with a progress bar."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from serve_app.cli.remote.client import Client

_POLL_S = 0.2


class Interrupted(Exception):
    """Ctrl-C, while a job is waited for."""

    def __init__(self, request_id: str) -> None:
        super().__init__(request_id)
        self.request_id = request_id


def run_job(
    client: Client, flavour: str, body: dict[str, Any], *, console: Console, **query: str
) -> dict[str, Any]:
    """Submit, show the progress, return the result of the ended job.

    Raises ClientError, Interrupted.
    """
    accepted = client.submit(flavour, body, **query)
    request_id = accepted["request_id"]
    try:
        return _follow(client, flavour, request_id, console=console)
    except KeyboardInterrupt:
        raise Interrupted(request_id) from None


def _follow(client: Client, flavour: str, request_id: str, *, console: Console) -> dict[str, Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(f"{flavour} {request_id}", total=1.0)
        while True:
            result = client.result(request_id, flavour)
            bars.update(bar, completed=1.0 if result["status"] else result.get("progress", 0.0))
            if result["status"]:
                return result
            time.sleep(_POLL_S)
