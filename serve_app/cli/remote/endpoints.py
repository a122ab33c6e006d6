"""`darkroom endpoints`: those of the key's owner, and with an admin key all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.markup import escape
from rich.table import Table

from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import console, fail, printable, show_json, tell, wants_json
from serve_app.endpoints.declared import EndpointsFileInvalid, read_declarations

app = typer.Typer(no_args_is_help=True, help="Make, list, change, drain and delete endpoints.")

MembersArgument = Annotated[
    list[str] | None,
    typer.Argument(help="member=value, as in: gpus=1 max_workers=4 'checkpoints=[a, b]'."),
]
RevisionOption = Annotated[
    int | None, typer.Option(help="Change it only if it is at this revision.")
]
DrainOption = Annotated[
    float | None,
    typer.Option(
        min=0, help="Seconds that it works off the jobs that it has; then those that wait fail."
    ),
]


@app.command("list")
def list_endpoints(url: UrlOption = None, key: KeyOption = None) -> None:
    """Every endpoint that the key administers."""
    with open_client(url, key) as client:
        page = client.endpoints()
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
    """An endpoint with its workers, its queue and its pace."""
    with open_client(url, key) as client:
        _print(client.endpoint(id))


@app.command("create")
def create_endpoint(  # noqa: PLR0917 - typer makes the options from the arguments
    id: str,
    members: MembersArgument = None,
    owner: Annotated[
        str | None, typer.Option(help="Whose jobs alone it takes; needs an admin key.")
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Make an endpoint; what is left out is as usual."""
    given = _members(members) | ({} if owner is None else {"owner": owner})
    with open_client(url, key) as client:
        _print(client.create_endpoint(id, given))


@app.command("update")
def update_endpoint(  # noqa: PLR0917 - typer makes the options from the arguments
    id: str,
    members: MembersArgument = None,
    revision: RevisionOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Change members; what is left out stays, and null is as usual again."""
    given = _members(members) | ({} if revision is None else {"revision": revision})
    with open_client(url, key) as client:
        _print(client.change_endpoint(id, given))


@app.command("drain")
def drain_endpoint(
    id: str,
    undo: Annotated[bool, typer.Option("--undo", help="Take jobs again.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Take no more jobs; those that it has are worked off, and then its workers go."""
    with open_client(url, key) as client:
        client.change_endpoint(id, {"draining": not undo})
    text = f"{id} takes jobs again." if undo else f"{id} takes no more jobs."
    tell(text, {"id": id, "draining": not undo})


@app.command("delete")
def delete_endpoint(
    id: str, drain: DrainOption = None, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Drain an endpoint, end what then still waits, and remove it."""
    with open_client(url, key) as client:
        ends_at = client.delete_endpoint(id, drain_s=drain)["ends_at"]
    text = f"{id} takes no more jobs. Those that wait at {ends_at} fail."
    tell(text, {"id": id, "ends_at": ends_at})


def require_readable(path: Path) -> None:
    """Print what is wrong with an endpoints file, and exit."""
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
            why = f"the value of {name} is no number, text, list or mapping: {value}"
            fail(why, code=ExitCode.USAGE)
    return members


def _print(endpoint: dict[str, Any]) -> None:
    show_json(endpoint)
