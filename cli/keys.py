"""`darkroom keys`: manages API keys, in the database of this machine or over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any, Protocol, TypeVar
from urllib.parse import quote

import typer
from darkroom_client import Darkroom
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Column, Table

from cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    replace_admin_key,
    with_keys,
)
from cli.connection import KeyOption, open_client
from cli.terminal import ExitCode, console, fail, printable, show_json, stderr, tell, wants_json
from events.errors import ServiceError
from events.log import utc_now
from events.store.keys import ApiKeys
from events.store.records import ApiKey, Scope
from events.types import Priority
from local.embedded import with_secret
from serve_app.access.api_keys import GRACE_S, mint, rotate
from serve_app.key_schemas import USUAL_SCOPES, KeyInfo, NewKey, NewKeyInfo
from serve_app.refusals import KeyNotFound, RequestRefused
from settings.keys import LONGEST_GRACE_S
from settings.settings import Settings
from storage.service_secret import webhook_secret

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.")

_ID_CHARS = 12
_STATE_CHARS = 7
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


OwnerArgument = Annotated[
    str, typer.Argument(help="The owner of the jobs. All keys of an owner share the jobs.")
]
NameOption = Annotated[str, typer.Option(help="A name for the key.")]
ScopeOption = Annotated[
    list[Scope] | None,
    typer.Option(help="A permission of the key. May be repeated. Default: generate, read, cancel."),
]
DaysOption = Annotated[
    float | None, typer.Option(help="Days until the key expires.", min=0, max=350_000)
]
RateOption = Annotated[float | None, typer.Option(help="Requests per second; 0 for no limit.")]
BurstOption = Annotated[
    int | None, typer.Option(help="Number of requests that may be sent at once after a pause.")
]
OpenJobsOption = Annotated[
    int | None, typer.Option(help="Largest number of queued and running jobs; 0 for no limit.")
]
MaxCostOption = Annotated[
    float | None,
    typer.Option(help="Most megapixel-steps of a job; 0 for only the limit of the endpoint."),
]
MetadataOption = Annotated[
    bool | None,
    typer.Option(
        "--metadata/--no-metadata", help="Whether images contain their graph, prompt and seed."
    ),
]
FormatOption = Annotated[
    str | None, typer.Option(help="Default format of images: png, webp or jpeg.")
]
QualityOption = Annotated[
    int | None,
    typer.Option(help="Default quality of WebP and JPEG: 1 to 100; a WebP of 100 is lossless."),
]
EndpointOption = Annotated[
    list[str] | None, typer.Option(help="An endpoint that the key may use. May be repeated.")
]
CallbackHostOption = Annotated[
    list[str] | None,
    typer.Option(help="A host to which callbacks may be sent, or *.example.com. May be repeated."),
]

WeightOption = Annotated[
    float | None,
    typer.Option(help="The owner's share of an endpoint while other owners wait: 0.1 to 100."),
]
PriorityOption = Annotated[
    Priority | None, typer.Option(help="Priority of the key's jobs. Default: normal.")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        help="URL of the service to call. Default: the database of the service on this machine.",
        envvar="DARKROOM_URL",
    ),
]


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
    """Create a key, and print the key and the secret that signs its callbacks.

    Both are shown only once.
    """
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


def _member(location: tuple[int | str, ...]) -> str:
    """Return the innermost member name in `location`, which also has positions in lists."""
    return [each for each in location if isinstance(each, str)][-1]


@app.command("list")
def list_keys(url: UrlOption = None, key: KeyOption = None) -> None:
    """List every key, without its secret."""
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
        typer.Option(
            help="Time for which the old key still works: 90s, 30m, 12h, 7d, 0s. Default: 7d."
        ),
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Create a new key with the same owner, name, scopes and limits, and print it like `create`."""
    period = None if grace is None else _period(grace)
    with open_keyring(url, key) as keyring:
        _show_once(keyring.rotate(key_id, period))


@app.command("revoke")
def revoke_key(key_id: str, url: UrlOption = None, key: KeyOption = None) -> None:
    """Revoke a key. The key stops working on every replica within 10 s."""
    with open_keyring(url, key) as keyring:
        keyring.revoke(key_id)
    tell(f"{key_id} is revoked.", {"id": key_id, "revoked": True})


def _shown_limits(limits: dict[str, Any]) -> str:
    """Return the limits of the key itself as text. Settings determine its other limits."""
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
        fail("write the grace as a number and s, m, h or d: 90s, 12h, 7d", code=ExitCode.USAGE)
    period = timedelta(**{_UNITS[parts[2]]: int(parts[1])})
    if period.total_seconds() > LONGEST_GRACE_S:
        text = "the grace may be at most 366 days"
        fail(text, code=ExitCode.USAGE)
    return period


_KEYS = "/v1/keys"


class Keyring(Protocol):
    """The API keys of a service. The methods return what the HTTP API answers."""

    def create(self, body: NewKey) -> dict[str, Any]: ...

    def all(self) -> list[dict[str, Any]]: ...

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]: ...

    def revoke(self, key_id: str) -> None: ...


@contextmanager
def open_keyring(url: str | None, key: str | None) -> Generator[Keyring]:
    """Yield the keys of the service at `url`, or of this machine's service if `url` is None."""
    if url is None:
        yield StoredKeys()
        return
    with open_client(url, key) as client:
        yield RemoteKeys(client)


class StoredKeys:
    """The keys in the database of this machine's service. The service need not run."""

    def __init__(self) -> None:
        self._settings = Settings.load()

    def create(self, body: NewKey) -> dict[str, Any]:
        text, key = mint(
            body.owner,
            body.name or body.owner,
            body.scopes,
            created_at=utc_now(),
            expires_at=body.expires_at,
            limits=body.limits.values(),
        )
        answer = self._shown_once(text, key)
        _ask_database(self._settings, lambda store: store.add(key))
        return answer

    def all(self) -> list[dict[str, Any]]:
        keys = _ask_database(self._settings, lambda store: store.all())
        return [_info(key) for key in keys]

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]:
        """Rotate a key. Without `grace`, the default grace period applies."""
        settings = with_secret(self._settings)
        period = timedelta(seconds=GRACE_S) if grace is None else grace
        try:
            text, key = _ask_database(
                settings, lambda store: rotate(store, key_id, grace=period, now=utc_now())
            )
        except RequestRefused as error:
            fail(str(error), code=_code_of(error))
        if replace_admin_key(settings.stores, key_id, text) and not wants_json():
            folder = settings.stores.data_dir
            stderr.print(
                f"This is the admin key. {folder / ADMIN_KEY_FILE} and "
                f"{folder / CALLBACK_SECRET_FILE} now contain the new one.",
                soft_wrap=True,
            )
        return self._shown_once(text, key)

    def revoke(self, key_id: str) -> None:
        if not _ask_database(self._settings, lambda store: store.revoke(key_id, utc_now())):
            fail(f"there is no live key with the id {key_id}", code=ExitCode.NOT_FOUND)

    def _shown_once(self, text: str, key: ApiKey) -> dict[str, Any]:
        secret = webhook_secret(with_secret(self._settings).stores.secret_bytes, key.id)
        return _info(key, key=text, webhook_secret=secret)


def _ask_database(settings: Settings, use: Callable[[ApiKeys], Awaitable[T]]) -> T:
    """Call `use` with the stored keys. Ends the program if the database cannot be used."""
    try:
        return asyncio.run(with_keys(settings.stores, use))
    except RequestRefused:
        raise
    except ServiceError as error:
        fail(str(error), code=ExitCode.UNAVAILABLE)


def _code_of(refused: RequestRefused) -> ExitCode:
    return ExitCode.NOT_FOUND if isinstance(refused, KeyNotFound) else ExitCode.REFUSED


def _info(key: ApiKey, /, **secrets: str) -> dict[str, Any]:
    model = KeyInfo if not secrets else NewKeyInfo
    return model.of(key, now=utc_now(), **secrets).model_dump(mode="json", exclude_none=True)


class RemoteKeys:
    """The keys of a service, over its HTTP API. Every method may raise DarkroomError."""

    def __init__(self, client: Darkroom, *, page: int = 200) -> None:
        """One request returns at most `page` keys."""
        self._client = client
        self._page = page

    def create(self, body: NewKey) -> dict[str, Any]:
        made: dict[str, Any] = self._client.call(
            "POST", _KEYS, json=body.model_dump(mode="json", exclude_none=True)
        )
        return made

    def all(self) -> list[dict[str, Any]]:
        keys: list[dict[str, Any]] = []
        filters: dict[str, Any] = {"limit": self._page}
        while True:
            page = self._client.call("GET", _KEYS, query=filters)
            keys += page["keys"]
            if "next_cursor" not in page:
                return keys
            filters["cursor"] = page["next_cursor"]

    def rotate(self, key_id: str, grace: timedelta | None) -> dict[str, Any]:
        """Rotate a key. Without `grace`, the default grace period of that service applies."""
        query = {} if grace is None else {"grace_s": grace.total_seconds()}
        made: dict[str, Any] = self._client.call("POST", f"{_path(key_id)}/rotate", query=query)
        return made

    def revoke(self, key_id: str) -> None:
        if self._client.call("GET", _path(key_id))["state"] != "live":
            fail(f"there is no live key with the id {key_id}", code=ExitCode.NOT_FOUND)
        self._client.call("DELETE", _path(key_id))


def _path(key_id: str) -> str:
    return f"{_KEYS}/{quote(key_id, safe='')}"
