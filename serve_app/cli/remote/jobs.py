"""`darkroom jobs`: the jobs of the key's owner, and with an admin key those of every owner."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from events.ids import ID_LENGTH
from events.types import DeadLetter
from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.terminal import console, fail, printable, show_json, tell, wants_json

app = typer.Typer(help="List, show, cancel, quarantine and resubmit jobs.")


class State(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


STATUS = {state: str(number) for number, state in enumerate(State)}

AllOption = Annotated[bool, typer.Option("--all", help="Of every owner; needs an admin key.")]
OwnerOption = Annotated[str | None, typer.Option(help="Of this owner; needs an admin key.")]
StateOption = Annotated[State | None, typer.Option(help="Running includes those that wait.")]
DeadLettersOption = Annotated[
    bool,
    typer.Option(
        "--dead-letters",
        help="Those that were quarantined or could not be dispatched; needs an admin key.",
    ),
]
LimitOption = Annotated[int, typer.Option(min=1, max=200)]
CursorOption = Annotated[str | None, typer.Option(help="Where the list before has ended.")]


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
    """Without a command: list them, newest first."""
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
        page = client.jobs(given, every_owner=every_owner)
    if wants_json():
        show_json(page)
        return
    console.print(_table(page["jobs"], every_owner=every_owner))
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("blocked")
def list_blocked_jobs(
    limit: LimitOption = 20,
    cursor: Annotated[int, typer.Option(help="Where the list before has ended.")] = 0,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Jobs of every owner that this version cannot read on, and why; needs an admin key."""
    with open_client(url, key) as client:
        page = client.blocked_jobs({"limit": limit, "cursor": cursor})
    if wants_json():
        show_json(page)
        return
    table = Table(Column("id", no_wrap=True, min_width=ID_LENGTH), "since", "why")
    for job in page["jobs"]:
        since = job["since"].partition(".")[0]
        table.add_row(job["request_id"], since, escape(printable(job["why"])))
    console.print(table)
    console.print(f"{page['count']} in all.")
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("show")
def show_job(
    request_id: str, every_owner: AllOption = False, url: UrlOption = None, key: KeyOption = None
) -> None:
    """What is known of a job; of another owner's job, nothing of what it was asked for."""
    with open_client(url, key) as client:
        job = client.job(request_id, every_owner=every_owner)
    show_json(job)


@app.command("cancel")
def cancel_job(
    request_id: str, every_owner: AllOption = False, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Stop a job."""
    with open_client(url, key) as client:
        if not client.cancel(request_id, every_owner=every_owner):
            fail(f"{request_id} had ended before.", request_id=request_id)
    tell(f"{request_id} is cancelled.", {"request_id": request_id, "cancelled": True})


@app.command("quarantine")
def quarantine_job(
    request_id: str,
    reason: Annotated[str, typer.Option(help="Its owner sees it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End any owner's job at once, and list it as a dead letter; needs an admin key."""
    with open_client(url, key) as client:
        if not client.quarantine(request_id, reason):
            fail(f"{request_id} had ended before.", request_id=request_id)
    tell(f"{request_id} is quarantined.", {"request_id": request_id, "quarantined": True})


@app.command("resubmit")
def resubmit_job(request_id: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Submit any owner's failed job again, as a new job of theirs; needs an admin key."""
    with open_client(url, key) as client:
        new_id = client.resubmit(request_id)
    tell(f"{request_id} runs again as {new_id}.", {"request_id": new_id, "retry_of": request_id})


def _table(jobs: list[dict[str, Any]], *, every_owner: bool) -> Table:
    """In a narrow terminal texts go on in the next line; an id stays whole, to be copied."""
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
