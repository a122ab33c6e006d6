"""`darkroom jobs`: manages the jobs of the key's owner, or of every owner with an admin key."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from cli.connection import KeyOption, UrlOption, job_path, jobs_path, open_client
from cli.terminal import console, fail, printable, show_json, tell, wants_json
from events.ids import ID_LENGTH
from events.types import DeadLetter

app = typer.Typer(help="List, show, cancel, quarantine and resubmit jobs.")


class State(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


STATUS = {state: str(number) for number, state in enumerate(State)}

AllOption = Annotated[
    bool, typer.Option("--all", help="Include the jobs of every owner; needs an admin key.")
]
OwnerOption = Annotated[
    str | None, typer.Option(help="Only the jobs of this owner; needs an admin key.")
]
StateOption = Annotated[State | None, typer.Option(help="`running` includes queued jobs.")]
DeadLettersOption = Annotated[
    bool,
    typer.Option(
        "--dead-letters",
        help="Only jobs that were quarantined or could not be dispatched; needs an admin key.",
    ),
]
LimitOption = Annotated[int, typer.Option(min=1, max=200)]
CursorOption = Annotated[
    str | None,
    typer.Option(help="Continue the list at this cursor, which the previous page ended with."),
]


@app.callback(invoke_without_command=True)
def list_jobs(  # noqa: PLR0917 - typer makes the options from the arguments
    context: typer.Context,
    every_owner: AllOption = False,
    owner: OwnerOption = None,
    state: StateOption = None,
    endpoint: str | None = None,
    dead_letters: DeadLettersOption = False,
    limit: LimitOption = 20,
    cursor: CursorOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List jobs, newest first, if no command is given."""
    if context.invoked_subcommand is not None:
        return
    filters: dict[str, Any] = {
        "owner": owner,
        "status": state and STATUS[state],
        "endpoint": endpoint,
        "dead_letter": list(DeadLetter) if dead_letters else None,
        "limit": limit,
        "cursor": cursor,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    every_owner = every_owner or dead_letters or owner is not None
    with open_client(url, key) as client:
        page = client.call("GET", jobs_path(every_owner=every_owner), query=given)
    if wants_json():
        show_json(page)
        return
    console.print(_table(page["jobs"], every_owner=every_owner))
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("blocked")
def list_blocked_jobs(
    limit: LimitOption = 20,
    cursor: Annotated[
        int,
        typer.Option(help="Continue the list at this cursor, which the previous page ended with."),
    ] = 0,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List the jobs of every owner whose events this version cannot read; needs an admin key."""
    with open_client(url, key) as client:
        page = client.call(
            "GET", "/v1/admin/jobs/blocked", query={"limit": limit, "cursor": cursor}
        )
    if wants_json():
        show_json(page)
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_LENGTH), "since", "why")
    for job in page["jobs"]:
        since = job["since"].partition(".")[0]
        table.add_row(job["request_id"], since, escape(printable(job["why"])))
    console.print(table)
    console.print(f"Jobs in all: {page['count']}")
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("show")
def show_job(
    request_id: str, every_owner: AllOption = False, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Show a job. The request of another owner's job is not shown."""
    with open_client(url, key) as client:
        job = client.call("GET", job_path(request_id, every_owner=every_owner))
    show_json(job)


@app.command("cancel")
def cancel_job(
    request_id: str, every_owner: AllOption = False, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Stop a job."""
    with open_client(url, key) as client:
        path = job_path(request_id, every_owner=every_owner)
        if not client.call("POST", f"{path}/cancel")["cancelled"]:
            fail(f"{request_id} had already ended.", request_id=request_id)
    tell(f"{request_id} is cancelled.", {"request_id": request_id, "cancelled": True})


@app.command("quarantine")
def quarantine_job(
    request_id: str,
    reason: Annotated[str, typer.Option(help="The reason, which the owner of the job can see.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End a job of any owner at once as a dead letter; needs an admin key."""
    with open_client(url, key) as client:
        path = job_path(request_id, every_owner=True)
        if not client.call("POST", f"{path}/quarantine", json={"reason": reason})["quarantined"]:
            fail(f"{request_id} had already ended.", request_id=request_id)
    tell(f"{request_id} is quarantined.", {"request_id": request_id, "quarantined": True})


@app.command("resubmit")
def resubmit_job(request_id: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Submit a failed job of any owner again, as a new job; needs an admin key."""
    with open_client(url, key) as client:
        path = job_path(request_id, every_owner=True)
        new_id = client.call("POST", f"{path}/resubmit")["request_id"]
    tell(f"{request_id} runs again as {new_id}.", {"request_id": new_id, "retry_of": request_id})


def _table(jobs: list[dict[str, Any]], *, every_owner: bool) -> Table:
    """Return a table in which ids are never folded, so that users can copy them."""
    owners, reasons = (("owner",), ("why it failed",)) if every_owner else ((), ())
    table = Table(Column("id", no_wrap=True, min_width=ID_LENGTH))
    for name in (*owners, "flavour", "endpoint", "state", "created", *reasons):
        table.add_column(name, overflow="fold")
    for job in jobs:
        owner = (escape(printable(job["owner"])),) if every_owner else ()
        why = (escape(printable(job.get("message", ""))),) if every_owner else ()
        created = job["created_at"].partition(".")[0]
        row = (job["flavour"], job["endpoint"], _state(job), created)
        table.add_row(job["request_id"], *owner, *row, *why)
    return table


def _state(job: dict[str, Any]) -> str:
    if job["status"] == 0 and "started_at" not in job:
        return "queued"
    return str(job.get("dead_letter") or list(State)[job["status"]])
