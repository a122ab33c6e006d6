"""`darkroom upload` and `darkroom uploads`: manage input files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from darkroom_client import Darkroom
from rich.markup import escape
from rich.table import Table

from cli.connection import KeyOption, UrlOption, open_client
from cli.terminal import ExitCode, console, fail, printable, show_json, tell, wants_json

app = typer.Typer(no_args_is_help=True, help="List and remove uploads.")

FilesArgument = Annotated[
    list[Path], typer.Argument(help="Images, videos, audio files or latents.")
]
LimitOption = Annotated[int, typer.Option(min=1, max=200)]
CursorOption = Annotated[
    str | None,
    typer.Option(help="Continue the list at this cursor, which the previous page ended with."),
]


def upload(files: FilesArgument, url: UrlOption = None, key: KeyOption = None) -> None:
    """Upload input files. Workflows name them by their file names."""
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
    """List the uploads of the key's owner, newest first."""
    filters = {"limit": limit} | ({} if cursor is None else {"cursor": cursor})
    with open_client(url, key) as client:
        page = client.call("GET", "/v1/uploads", query=filters)
    if wants_json():
        show_json(page)
        return
    console.print(_table(page["uploads"]))
    if "next_cursor" in page:
        console.print(f"More: --cursor {page['next_cursor']}", soft_wrap=True)


@app.command("remove")
def remove_upload(name: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Remove an upload. Jobs that were accepted with the upload can still use it."""
    with open_client(url, key) as client:
        client.call("DELETE", f"/v1/uploads/{quote(name, safe='')}")
    tell(f"{printable(name)} is removed.", {"name": name, "removed": True})


def store_files(client: Darkroom, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Upload each file under its name. If a file cannot be read, no file is uploaded."""
    try:
        read = [(path.name, path.read_bytes()) for path in paths]
    except OSError as error:
        fail(str(error), code=ExitCode.USAGE)
    return [dict(client.upload(name, data).raw) for name, data in read]


def _table(uploads: list[dict[str, Any]]) -> Table:
    table = Table("name", "type", "size", "bytes", "created")
    for each in uploads:
        created = each["created_at"].partition(".")[0]
        size = f"{each['width']} x {each['height']}" if "width" in each else ""
        media_type = each.get("media_type", "")
        table.add_row(
            escape(printable(each["name"])), media_type, size, str(each["size_bytes"]), created
        )
    return table
