"""Which service a command talks to, and with which key."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from serve_app.cli.admin_key import ADMIN_KEY_FILE
from serve_app.cli.client import Client, ClientError
from serve_app.cli.terminal import fail
from settings.settings import Settings

UrlOption = Annotated[
    str | None, typer.Option(help="Of the service; default: this machine's.", envvar="DARKROOM_URL")
]
KeyOption = Annotated[
    str | None, typer.Option(help="Default: <data>/admin.key.", envvar="DARKROOM_API_KEY")
]


@contextmanager
def open_client(url: str | None, key: str | None) -> Generator[Client]:
    """Prints a ClientError and exits."""
    settings = Settings.load()
    path = settings.stores.data_dir / ADMIN_KEY_FILE
    if key is None and not path.exists():
        fail(f"no key: give --key or DARKROOM_API_KEY, or run where {path} is")
    text = key or path.read_text().strip()
    try:
        with Client(url or settings.http.effective_public_url, text) as client:
            yield client
    except ClientError as error:
        fail(str(error))
