"""Which service a command talks to, and with which key."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import httpx
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
    str | None,
    typer.Option(help="Default, for this machine's: <data>/admin.key.", envvar="DARKROOM_API_KEY"),
]


@contextmanager
def open_client(url: str | None, key: str | None) -> Generator[Client]:
    """Writes a ClientError and exits."""
    own_url, data_dir = _own_service()
    with_own_key = url is None or _is_own(url, own_url)
    try:
        with Client(url or own_url, key or _own_key(data_dir, is_sent=with_own_key)) as client:
            yield client
    except ClientError as error:
        fail(str(error), code=error.code, **_members(error))


def _own_service() -> tuple[str, Path]:
    """Of this machine: its address, and its data folder."""
    settings = Settings.load()
    return settings.http.effective_public_url, settings.stores.data_dir


def _is_own(url: str, own_url: str) -> bool:
    host = httpx.URL(url).host
    return host in {"localhost", "127.0.0.1", "::1"} or url.rstrip("/") == own_url.rstrip("/")


def _own_key(data_dir: Path, *, is_sent: bool) -> str:
    """That of the administrator, which goes to no other service."""
    path = data_dir / ADMIN_KEY_FILE
    if not is_sent:
        fail("no key for that service: give --key or DARKROOM_API_KEY", code=ExitCode.FORBIDDEN)
    if not path.exists():
        text = f"no key: give --key or DARKROOM_API_KEY, or run where {path} is"
        fail(text, code=ExitCode.FORBIDDEN)
    return path.read_text().strip()


def _members(error: ClientError) -> dict[str, object]:
    """What the service says of its refusal beside the message."""
    told = error.answer.get("error", {}) | {"node_errors": error.answer.get("node_errors")}
    return {name: each for name, each in told.items() if each and name not in {"message", "code"}}
