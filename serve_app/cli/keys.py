"""`darkroom keys`: API keys of this machine's service in its database, of others over HTTP."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Protocol

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Column, Table

from events.log import utc_now
from events.store.records import Scope
from events.types import Priority
from serve_app.access.key_bodies import USUAL_SCOPES, NewKey
from serve_app.cli.connection import KeyOption, open_client
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.remote.keys import RemoteKeys
from serve_app.cli.stored_keys import StoredKeys
from serve_app.cli.terminal import console, fail, printable, show_json, tell, wants_json
from settings.keys import LONGEST_GRACE_S

app = typer.Typer(no_args_is_help=True, help="Make, list, rotate and revoke API keys.")

_ID_CHARS = 12
_STATE_CHARS = 7
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


OwnerArgument = Annotated[
    str, typer.Argument(help="Whose jobs these are: keys of one owner share them.")
]
NameOption = Annotated[str, typer.Option(help="To tell keys apart.")]
ScopeOption = Annotated[
    list[Scope] | None, typer.Option(help="May be repeated. Default: generate, read, cancel.")
]
DaysOption = Annotated[
    float | None, typer.Option(help="Days until it expires.", min=0, max=350_000)
]
RateOption = Annotated[float | None, typer.Option(help="Requests a second; 0: any number.")]
BurstOption = Annotated[int | None, typer.Option(help="Requests at once, after a pause.")]
OpenJobsOption = Annotated[int | None, typer.Option(help="Jobs that wait or run; 0: any number.")]
MaxCostOption = Annotated[
    float | None, typer.Option(help="Megapixel-steps of a job; 0: as its endpoint has it.")
]
MetadataOption = Annotated[
    bool | None,
    typer.Option("--metadata/--no-metadata", help="Whether its images say how they were made."),
]
FormatOption = Annotated[
    str | None, typer.Option(help="Of its images, where a request names none: png, webp or jpeg.")
]
QualityOption = Annotated[
    int | None,
    typer.Option(help="Of its WebP and JPEG images: 1 to 100; a WebP of 100 is lossless."),
]
EndpointOption = Annotated[
    list[str] | None, typer.Option(help="It may use this one; may be repeated.")
]
CallbackHostOption = Annotated[
    list[str] | None, typer.Option(help="Or *.example.com; may be repeated.")
]

WeightOption = Annotated[
    float | None, typer.Option(help="Of its owner's turns while others wait: 0.1 to 100.")
]
PriorityOption = Annotated[
    Priority | None, typer.Option(help="The class of its jobs. Default: normal.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        help="Of a service elsewhere, which is called; default: the database of this machine's.",
        envvar="DARKROOM_URL",
    ),
]


class Keyring(Protocol):
    """Where keys are. Answers are those of the HTTP API."""

    def create(self, body: NewKey) -> dict[str, Any]: ...

    def all(self) -> list[dict[str, Any]]: ...

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]: ...

    def revoke(self, key_id: str) -> None: ...


@contextmanager
def open_keyring(url: str | None, key: str | None) -> Generator[Keyring]:
    if url is None:
        yield StoredKeys()
        return
    with open_client(url, key) as client:
        yield RemoteKeys(client)


@app.command("create")
def create_key(  # noqa: PLR0917 - typer makes the options from the arguments
    owner: OwnerArgument,
    name: NameOption = "",
    scope: ScopeOption = None,
    days: DaysOption = None,
    rate: RateOption = None,
    burst: BurstOption = None,
    max_open_jobs: OpenJobsOption = None,
    max_cost: MaxCostOption = None,
    metadata: MetadataOption = None,
    image_format: FormatOption = None,
    image_quality: QualityOption = None,
    endpoint: EndpointOption = None,
    callback_host: CallbackHostOption = None,
    weight: WeightOption = None,
    priority: PriorityOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Make a key; print it, this once, and the secret that signs its callbacks."""
    limits = _given(
        rate_per_s=rate,
        burst=burst,
        max_open_jobs=max_open_jobs,
        max_cost=max_cost,
        embed_metadata=metadata,
        image_format=image_format,
        image_quality=image_quality,
        endpoints=endpoint or None,
        callback_hosts=callback_host or None,
        weight=weight,
        priority=priority,
    )
    expires_at = None if days is None else utc_now() + timedelta(days=days)
    scopes = scope or USUAL_SCOPES
    body = _checked(
        owner=owner, name=name or None, scopes=scopes, expires_at=expires_at, limits=limits
    )
    with open_keyring(url, key) as keyring:
        _show_once(keyring.create(body))


def _given(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _checked(**members: Any) -> NewKey:
    try:
        return NewKey(**members)
    except ValidationError as error:
        text = "; ".join(f"{_member(each['loc'])}: {each['msg']}" for each in error.errors())
        fail(text, code=ExitCode.USAGE)


def _member(place: tuple[int | str, ...]) -> str:
    """The innermost one that has a name."""
    return [each for each in place if isinstance(each, str)][-1]


@app.command("list")
def list_keys(url: UrlOption = None, key: KeyOption = None) -> None:
    """Every key, without its secret."""
    with open_keyring(url, key) as keyring:
        keys = keyring.all()
    if wants_json():
        show_json({"keys": keys})
        return
    id_column = Column("id", no_wrap=True, min_width=_ID_CHARS)
    state_column = Column("state", no_wrap=True, min_width=_STATE_CHARS)
    table = Table(
        id_column, "owner", "name", "scopes", "limits", "created", "expires", state_column
    )
    for each in keys:
        table.add_row(
            each["id"],
            escape(printable(each["owner"])),
            escape(printable(each["name"])),
            " ".join(sorted(each["scopes"])),
            escape(printable(_shown_limits(each["limits"]))),
            each["created_at"].partition("T")[0],
            each.get("expires_at", "never").partition("T")[0],
            each["state"],
        )
    console.print(table)


@app.command("rotate")
def rotate_key(
    key_id: str,
    grace: Annotated[
        str | None,
        typer.Option(help="How long the old key still works: 90s, 30m, 12h, 7d, 0s. Default: 7d."),
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Make a new key of the same owner, name, scopes and limits; print it as `create` does."""
    period = None if grace is None else _period(grace)
    with open_keyring(url, key) as keyring:
        _show_once(keyring.rotate(key_id, period))


@app.command("revoke")
def revoke_key(key_id: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """End a key; holds on every replica within 10 s."""
    with open_keyring(url, key) as keyring:
        keyring.revoke(key_id)
    tell(f"{key_id} is revoked.", {"id": key_id, "revoked": True})


def _shown_limits(limits: dict[str, Any]) -> str:
    """Those of its own; for others the settings hold."""
    return " ".join(
        f"{name}={','.join(value) if isinstance(value, list) else value}"
        for name, value in limits.items()
    )


def _show_once(made: dict[str, Any]) -> None:
    if wants_json():
        show_json(made)
        return
    for line in (made["key"], made["webhook_secret"]):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _period(text: str) -> timedelta:
    parts = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if parts is None:
        fail("give the grace as a number and s, m, h or d: 90s, 12h, 7d", code=ExitCode.USAGE)
    period = timedelta(**{_UNITS[parts[2]]: int(parts[1])})
    if period.total_seconds() > LONGEST_GRACE_S:
        text = "the grace is 366 days at most; a key that shall live on need not be rotated"
        fail(text, code=ExitCode.USAGE)
    return period
