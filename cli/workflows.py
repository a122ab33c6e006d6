"""`darkroom run` and `darkroom workflows`: run and manage named workflows."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
import yaml
from darkroom_client import Darkroom, Refused
from rich.markup import escape
from rich.table import Table

from cli.connection import KeyOption, UrlOption, open_client
from cli.generate import (
    CallbackOption,
    FormatOption,
    KeepOption,
    OutOption,
    QualityOption,
    query_of,
    show,
    submit,
)
from cli.terminal import ExitCode, console, fail, printable, show_json, tell, wants_json
from cli.uploads import store_files

app = typer.Typer(no_args_is_help=True, help="List, show, store, mark and delete named workflows.")

_WORKFLOWS = "/v1/workflows"
_FILES = ("image", "file")
"""The formats of inputs that take the name of an upload."""

NameArgument = Annotated[
    str, typer.Argument(help="A name, or a name with a version: portrait, portrait@3.")
]
InputsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="input=value, for example: prompt='a lighthouse' steps=12 image=@cat.png."),
]
SharedOption = Annotated[
    bool, typer.Option("--shared", help="The workflow of all owners; needs an admin key.")
]


def run(  # noqa: PLR0917 - typer makes the options from the arguments
    name: NameArgument,
    inputs: InputsArgument = None,
    endpoint: str | None = None,
    callback_url: CallbackOption = None,
    image_format: FormatOption = None,
    image_quality: QualityOption = None,
    out: OutOption = Path("pictures"),
    keep: KeepOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Run a named workflow, show its progress and save its pictures."""
    with open_client(url, key) as client:
        schema = client.call("GET", f"{_path(name)}/schema")["inputs"]
        body = {"inputs": _values(client, inputs or (), schema["properties"])}
        query = query_of(endpoint, callback_url, image_format, image_quality)
        show(submit(client, f"{_path(name)}/generate", body, query, is_kept=keep), client, out)


@app.command("list")
def list_workflows(url: UrlOption = None, key: KeyOption = None) -> None:
    """List the workflows that the key may run."""
    with open_client(url, key) as client:
        page = client.call("GET", _WORKFLOWS)
    if wants_json():
        show_json(page)
        return
    table = Table("name", "version", "versions", "shared")
    for each in page["workflows"]:
        row = (str(each["version"]), str(len(each["versions"])), "yes" if each["shared"] else "no")
        table.add_row(escape(printable(each["name"])), *row)
    console.print(table)


@app.command("show")
def show_workflow(name: NameArgument, url: UrlOption = None, key: KeyOption = None) -> None:
    """Show a version of a workflow with its inputs, its outputs and its graph."""
    with open_client(url, key) as client:
        show_json(client.call("GET", _path(name)))


@app.command("store")
def store_workflow(  # noqa: PLR0917 - typer makes the options from the arguments
    name: str,
    file: Annotated[
        Path, typer.Argument(help="A graph, a file of ComfyUI's editor, or an image with a graph.")
    ],
    description: str | None = None,
    endpoint: str | None = None,
    shared: SharedOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Store a graph under a name. If the name exists, the graph becomes its newest version."""
    given = {"prompt": _graph(file), "description": description, "endpoint": endpoint}
    body = {member: value for member, value in given.items() if value is not None}
    with open_client(url, key) as client:
        try:
            new = client.call("POST", _WORKFLOWS, json=body | {"name": name, "shared": shared})
        except Refused as error:
            if error.type != "workflow_exists":
                raise
            query = {"shared": "true"} if shared else {}
            new = client.call("PATCH", _path(name), json=body, query=query)
    if wants_json():
        show_json(new)
        return
    table = Table("input", "type", "node", "value")
    for asked, each in new["inputs"].items():
        value = escape(printable(str(each.get("default", each.get("value", "")))[:60]))
        table.add_row(asked, each["type"], escape(f"{each['node']}.{each['input']}"), value)
    console.print(f"{name}@{new['shown']} is stored.")
    console.print(table)


@app.command("mark")
def mark_version(  # noqa: PLR0917 - typer makes the options from the arguments
    name: str,
    version: Annotated[
        int | None, typer.Argument(help="The version that the name means. Absent: the newest one.")
    ] = None,
    shared: SharedOption = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Choose the version that the name without a version means."""
    query = {"shared": "true"} if shared else {}
    with open_client(url, key) as client:
        new = client.call("PATCH", _path(name), json={"marked": version}, query=query)
    tell(f"{name} means version {new['version']}.", {"name": name, "version": new["version"]})


@app.command("delete")
def delete_workflow(
    name: str, shared: SharedOption = False, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Delete all versions of a workflow. Its jobs stay."""
    query = {"shared": "true"} if shared else {}
    with open_client(url, key) as client:
        client.call("DELETE", _path(name), query=query)
    tell(f"{name} is deleted.", {"name": name, "deleted": True})


def _values(
    client: Darkroom, given: list[str] | tuple[str, ...], properties: dict[str, Any]
) -> dict[str, Any]:
    """Return the values of the inputs. Files (`@FILE`) are uploaded, and texts stay as they are.

    `properties` has the JSON Schemas of the inputs by name.
    """
    values: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            fail(f"write {text!r} as input=value", code=ExitCode.USAGE)
        schema = properties.get(name, {})
        if value.startswith("@") and schema.get("format") in _FILES:
            [stored] = store_files(client, [Path(value[1:])])
            values[name] = stored["name"]
        elif schema.get("type", "string") == "string":
            values[name] = value
        else:
            values[name] = _parsed(name, value)
    return values


def _parsed(name: str, value: str) -> Any:
    try:
        parsed = yaml.safe_load(value)
        json.dumps(parsed, allow_nan=False)
    except (yaml.YAMLError, TypeError, ValueError, RecursionError):
        fail(f"the value of {name} is not a number or a truth value: {value}", code=ExitCode.USAGE)
    return parsed


def _graph(file: Path) -> Any:
    """Return the graph in a JSON file, or an image as a data URL."""
    try:
        data = file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error}", code=ExitCode.USAGE)
    try:
        return json.loads(data)
    except ValueError:
        return f"data:application/octet-stream;base64,{b64encode(data).decode()}"


def _path(name: str) -> str:
    return f"{_WORKFLOWS}/{quote(name, safe='@')}"
