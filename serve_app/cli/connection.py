"""Which service a command talks to, and with which key."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from serve_app.cli.admin_key import ADMIN_KEY_FILE
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.client import Client, ClientError
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
    """Writes a ClientError and exits."""
    settings = Settings.load()
    path = settings.stores.data_dir / ADMIN_KEY_FILE
    if key is None and not path.exists():
        text = f"no key: give --key or DARKROOM_API_KEY, or run where {path} is"
        fail(text, code=ExitCode.FORBIDDEN)
    key = key or path.read_text().strip()
    try:
        with Client(url or settings.http.effective_public_url, key) as client:
            yield client
    except ClientError as error:
        fail(str(error), code=error.code, **_members(error))


def _members(error: ClientError) -> dict[str, object]:
    """What the service says of its refusal beside the message."""
    told = error.answer.get("error", {}) | {"node_errors": error.answer.get("node_errors")}
    return {name: each for name, each in told.items() if each and name not in {"message", "code"}}
