"""`darkroom upload` and `darkroom uploads`: input images and latents of the key's owner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from serve_app.cli.connection import KeyOption, UrlOption, open_client
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client
from serve_app.cli.terminal import console, fail, printable, show_json, tell, wants_json

app = typer.Typer(no_args_is_help=True, help="List and remove what was uploaded.")

FilesArgument = Annotated[list[Path], typer.Argument(help="PNG, JPEG or WebP images, or latents.")]
LimitOption = Annotated[int, typer.Option(min=1, max=200)]
CursorOption = Annotated[str | None, typer.Option(help="Where the list before has ended.")]


def upload(files: FilesArgument, url: UrlOption = None, key: KeyOption = None) -> None:
    """Upload input images and latents, which a workflow names by their file names."""
    with open_client(url, key) as client:
        stored = store_files(client, files)
    if wants_json():
        show_json({"uploads": stored})
    else:
        console.print(_table(stored))


@app.command("list")
def list_uploads(
    limit: LimitOption = 50,
    cursor: CursorOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Those of the key's owner, newest first."""
    filters = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
    with open_client(url, key) as client:
        page = client.uploads(filters)
    if wants_json():
        show_json(page)
        return
    console.print(_table(page["uploads"]))
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("remove")
def remove_upload(name: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Remove one. Jobs that were accepted with it still get it."""
    with open_client(url, key) as client:
        client.remove_upload(name)
    tell(f"{printable(name)} is removed.", {"name": name, "removed": True})


def store_files(client: Client, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Upload each under its file name. A file that cannot be read ends the command before."""
    try:
        read = [(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        fail(str(error), code=ExitCode.USAGE)
    return [client.upload(name, data) for name, data in read]


def _table(uploads: list[dict[str, Any]]) -> Table:
    table = Table("name", "size", "bytes", "created")
    for each in uploads:
        created = each["created_at"].partition(".")[0]
        size = f"{each['width']} x {each['height']}"
        table.add_row(escape(printable(each["name"])), size, str(each["size_bytes"]), created)
    return table
