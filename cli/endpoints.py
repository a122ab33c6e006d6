"""`darkroom endpoints`: manages the endpoints of the key's owner, or all with an admin key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from cli.connection import KeyOption, UrlOption, open_client
from cli.terminal import ExitCode, console, fail, printable, show_json, tell, wants_json
from serve_app.endpoints.declared import EndpointsFileInvalid, read_declarations

app = typer.Typer(no_args_is_help=True, help="Create, list, change, drain and delete endpoints.")

_ENDPOINTS = "/v1/endpoints"

MembersArgument = Annotated[
    list[str] | None,
    typer.Argument(help="member=value, for example: gpus=1 max_workers=4 'checkpoints=[a, b]'."),
]
RevisionOption = Annotated[
    int | None, typer.Option(help="Change the endpoint only if it has this revision.")
]
DrainOption = Annotated[
    float | None,
    typer.Option(
        min=0, help="Seconds for which queued jobs are still started. Then the remaining jobs fail."
    ),
]


@app.command("list")
def list_endpoints(url: UrlOption = None, key: KeyOption = None) -> None:
    """List every endpoint that the key administers."""
    with open_client(url, key) as client:
        page = client.call("GET", _ENDPOINTS)
    if wants_json():
        show_json(page)
        return
    table = Table("id", "owner", "state", "revision", "workers", "checkpoint")
    for each in page["endpoints"]:
        table.add_row(
            each["id"],
            escape(printable(each.get("owner", "-"))),
            each["state"],
            str(each["revision"]),
            f"{each['min_workers']} to {each['max_workers']}",
            escape(printable(each.get("checkpoint", "-"))),
        )
    console.print(table)


@app.command("show")
def show_endpoint(id: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Show an endpoint with its workers, its queue and its throughput."""
    with open_client(url, key) as client:
        show_json(client.call("GET", _path(id)))


@app.command("create")
def create_endpoint(  # noqa: PLR0917 - typer makes the options from the arguments
    id: str,
    members: MembersArgument = None,
    owner: Annotated[
        str | None, typer.Option(help="Accept only the jobs of this owner; needs an admin key.")
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Create an endpoint. A member that is left out has its default."""
    given = _members(members) | ({} if owner is None else {"owner": owner})
    with open_client(url, key) as client:
        show_json(client.call("POST", _ENDPOINTS, json={**given, "id": id}))


@app.command("update")
def update_endpoint(  # noqa: PLR0917 - typer makes the options from the arguments
    id: str,
    members: MembersArgument = None,
    revision: RevisionOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Change members. A member that is left out stays unchanged, and null restores the default."""
    given = _members(members) | ({} if revision is None else {"revision": revision})
    with open_client(url, key) as client:
        show_json(client.call("PATCH", _path(id), json=given))


@app.command("drain")
def drain_endpoint(
    id: str,
    undo: Annotated[bool, typer.Option("--undo", help="Accept jobs again.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Accept no more jobs, finish the queued jobs, then remove the workers."""
    with open_client(url, key) as client:
        client.call("PATCH", _path(id), json={"draining": not undo})
    text = f"{id} accepts jobs again." if undo else f"{id} accepts no more jobs."
    tell(text, {"id": id, "draining": not undo})


@app.command("delete")
def delete_endpoint(
    id: str, drain: DrainOption = None, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Drain an endpoint, fail the jobs that still wait after `--drain` seconds (default 300), and
    remove the endpoint.
    """
    with open_client(url, key) as client:
        query = {} if drain is None else {"drain_s": drain}
        ends_at = client.call("DELETE", _path(id), query=query)["ends_at"]
    text = f"{id} accepts no more jobs. Jobs that are still queued at {ends_at} fail."
    tell(text, {"id": id, "ends_at": ends_at})


def require_readable(path: Path) -> None:
    """Exit with an error message if the endpoints file is not valid."""
    try:
        read_declarations(path)
    except EndpointsFileInvalid as error:
        fail(f"DARKROOM_ENDPOINTS_FILE: {error}", code=ExitCode.USAGE)


def _members(given: list[str] | None) -> dict[str, Any]:
    members = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"write {text!r} as member=value", code=ExitCode.USAGE)
        try:
            members[name] = yaml.safe_load(value)
            json.dumps(members[name], allow_nan=False)
        except (yaml.YAMLError, TypeError, ValueError, RecursionError):
            why = f"the value of {name} is not a number, text, list or mapping: {value}"
            fail(why, code=ExitCode.USAGE)
    return members


def _path(id: str) -> str:
    return f"{_ENDPOINTS}/{quote(id, safe='')}"
