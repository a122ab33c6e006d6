"""`darkroom models`: the models that a job may name."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cli.connection import KeyOption, UrlOption, open_client
from cli.terminal import console, printable, show_json, wants_json

KindOption = Annotated[
    str | None, typer.Option(help="List only models of this kind: checkpoints, loras, vae, ...")
]


def models(kind: KindOption = None, url: UrlOption = None, key: KeyOption = None) -> None:
    """List the models that jobs may use."""
    with open_client(url, key) as client:
        listed = client.call("GET", "/v1/models")["models"]
    found = [each for each in listed if kind in {None, each["kind"]}]
    if wants_json():
        show_json({"models": found})
        return
    table = Table("kind", "name", "family")
    for each in found:
        table.add_row(each["kind"], escape(printable(each["name"])), each["family"] or "-")
    console.print(table)
