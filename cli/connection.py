"""The connection of a command to the service: its URL, the API key, and the paths of jobs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import httpx
import typer
from darkroom_client import Darkroom, DarkroomError, Refused

from cli.admin_key import ADMIN_KEY_FILE
from cli.terminal import ExitCode, code_of_status, fail
from settings.settings import Settings

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="URL of the service. Default: the service on this machine.", envvar="DARKROOM_URL"
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        help="API key. Default for the service on this machine: the key in <data>/admin.key.",
        envvar="DARKROOM_API_KEY",
    ),
]


@contextmanager
def open_client(url: str | None, key: str | None) -> Generator[Darkroom]:
    """Open a client of the service. An error of the client is printed and ends the command."""
    url, key = service_of(url, key)
    # The proxies of the environment are not used, because most services are on this machine or in
    # its network.
    transport = httpx.HTTPTransport(trust_env=False)
    try:
        with Darkroom(url, key, transport=transport) as client:
            yield client
    except Refused as error:
        fail(_explanation(error), code=code_of_status(error.status), **_members(error))
    except DarkroomError as error:
        text = f"No service answers at {url} ({error}). Start it, or set --url."
        fail(text, code=ExitCode.UNAVAILABLE)


def service_of(url: str | None, key: str | None) -> tuple[str, str]:
    """Return the URL of the service and its key. Exits if there is no key."""
    own_url, data_dir = _own_service()
    is_own = url is None or _is_own(url, own_url)
    return url or own_url, key or _own_key(data_dir, is_own=is_own)


def job_path(request_id: str, *, every_owner: bool = False) -> str:
    """Return the path of a job. With `every_owner`, an admin key may name the job of any owner."""
    return f"{jobs_path(every_owner=every_owner)}/{quote(request_id, safe='')}"


def jobs_path(*, every_owner: bool) -> str:
    return "/v1/admin/jobs" if every_owner else "/v1/jobs"


def _own_service() -> tuple[str, Path]:
    settings = Settings.load()
    return settings.http.effective_public_url, settings.stores.data_dir


def _is_own(url: str, own_url: str) -> bool:
    host = httpx.URL(url).host
    return host in {"localhost", "127.0.0.1", "::1"} or url.rstrip("/") == own_url.rstrip("/")


def _own_key(data_dir: Path, *, is_own: bool) -> str:
    """Return the admin key of this machine's service. Exits if another service is called."""
    path = data_dir / ADMIN_KEY_FILE
    if not is_own:
        fail("no key for this service: set --key or DARKROOM_API_KEY", code=ExitCode.FORBIDDEN)
    if not path.exists():
        text = f"no key: set --key or DARKROOM_API_KEY, or run the command where {path} is"
        fail(text, code=ExitCode.FORBIDDEN)
    return path.read_text().strip()


def _explanation(error: Refused) -> str:
    lines = [f"{error.status} {error.type}: {error.message} {error.details}"]
    for node_id, node in error.node_errors.items():
        lines += [
            f"  node {node_id} ({node['class_type']}): {each['message']} {each['details']}"
            for each in node["errors"]
        ]
    return "\n".join(lines)


def _members(error: Refused) -> dict[str, object]:
    """Return the members of the error body that have a value, except `message` and `code`."""
    members = error.body.get("error", {}) | {"node_errors": error.body.get("node_errors")}
    return {
        name: each for name, each in members.items() if each and name not in {"message", "code"}
    }
