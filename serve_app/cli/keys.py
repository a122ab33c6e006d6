"""`darkroom keys`: changes API keys in the database itself, whether the service runs or not."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape
from rich.table import Column, Table

from events.log import utc_now
from events.store.records import ApiKey, KeyLimits, Scope
from events.types import Priority
from events.webhook_secret import webhook_secret
from serve_app.access.api_keys import mint
from serve_app.access.key_bodies import USUAL_SCOPES, KeyInfo, Limits, NewKeyInfo
from serve_app.access.rotation import rotate
from serve_app.cli.admin_key import (
    ADMIN_KEY_FILE,
    CALLBACK_SECRET_FILE,
    replace_admin_key,
    with_keys,
)
from serve_app.cli.exit_codes import ExitCode
from serve_app.cli.terminal import console, fail, show_json, tell, wants_json
from serve_app.local.embedded import with_secret
from serve_app.refusals import KeyNotFound, RequestRefused
from settings.keys import LONGEST_GRACE_S
from settings.settings import Settings

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
DaysOption = Annotated[float | None, typer.Option(help="Days until it expires.", min=0)]
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
) -> None:
    """Make a key; print it, this once, and the secret that signs its callbacks."""
    limits = _limits(
        rate_per_s=rate,
        burst=burst,
        max_open_jobs=max_open_jobs,
        max_cost=max_cost,
        embed_metadata=metadata,
        image_format=image_format,
        image_quality=image_quality,
        endpoints=tuple(endpoint) if endpoint else None,
        callback_hosts=tuple(callback_host) if callback_host else None,
        weight=weight,
        priority=priority,
    )
    _add_key(owner, name or owner, scope or USUAL_SCOPES, days=days, limits=limits)


def _add_key(
    owner: str, name: str, scopes: Iterable[Scope], *, days: float | None, limits: KeyLimits
) -> None:
    now = utc_now()
    expires_at = now + timedelta(days=days) if days is not None else None
    text, key = mint(owner, name, scopes, created_at=now, expires_at=expires_at, limits=limits)
    settings = with_secret(Settings.load())
    asyncio.run(with_keys(settings.stores, lambda store: store.add(key)))
    _show_once(settings, text, key)


def _limits(**values: Any) -> KeyLimits:
    try:
        return Limits(**values).values()
    except ValidationError as error:
        text = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        fail(text, code=ExitCode.USAGE)


@app.command("list")
def list_keys() -> None:
    """Every key, without its secret."""
    now = utc_now()
    keys = asyncio.run(with_keys(Settings.load().stores, lambda store: store.all()))
    if wants_json():
        show_json({"keys": [_info(key) for key in keys]})
        return
    id_column = Column("id", no_wrap=True, min_width=_ID_CHARS)
    state_column = Column("state", no_wrap=True, min_width=_STATE_CHARS)
    table = Table(
        id_column, "owner", "name", "scopes", "limits", "created", "expires", state_column
    )
    for key in keys:
        expires = f"{key.expires_at:%Y-%m-%d}" if key.expires_at else "never"
        table.add_row(
            key.id,
            escape(key.owner),
            escape(key.name),
            " ".join(sorted(key.scopes)),
            escape(_shown_limits(key)),
            f"{key.created_at:%Y-%m-%d}",
            expires,
            KeyInfo.of(key, now=now).state,
        )
    console.print(table)


@app.command("rotate")
def rotate_key(
    key_id: str,
    grace: Annotated[
        str | None,
        typer.Option(help="How long the old key still works: 90s, 30m, 12h, 7d, 0s. Default: 7d."),
    ] = None,
) -> None:
    """Make a new key of the same owner, name, scopes and limits; print it as `create` does."""
    settings = with_secret(Settings.load())
    period = timedelta(seconds=settings.keys.rotation_grace_s) if grace is None else _period(grace)
    try:
        text, key = asyncio.run(
            with_keys(
                settings.stores, lambda store: rotate(store, key_id, grace=period, now=utc_now())
            )
        )
    except RequestRefused as error:
        fail(str(error), code=_code_of(error))
    _show_once(settings, text, key)
    if replace_admin_key(settings.stores, key_id, text) and not wants_json():
        folder = settings.stores.data_dir
        console.print(
            f"They are in {folder / ADMIN_KEY_FILE} and {folder / CALLBACK_SECRET_FILE}, too.",
            soft_wrap=True,
        )


@app.command("revoke")
def revoke_key(key_id: str) -> None:
    """End a key; holds on every replica within 10 s."""
    if not asyncio.run(
        with_keys(Settings.load().stores, lambda store: store.revoke(key_id, utc_now()))
    ):
        fail(f"no live key has the id {key_id}", code=ExitCode.NOT_FOUND)
    tell(f"{key_id} is revoked.", {"id": key_id, "revoked": True})


def _shown_limits(key: ApiKey) -> str:
    """Those of its own; for others the settings hold."""
    given = {name: value for name, value in asdict(key.limits).items() if value is not None}
    return " ".join(
        f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, value in given.items()
    )


def _code_of(refused: RequestRefused) -> ExitCode:
    return ExitCode.NOT_FOUND if isinstance(refused, KeyNotFound) else ExitCode.REFUSED


def _info(key: ApiKey, /, **secrets: str) -> dict[str, Any]:
    """As the HTTP API answers it."""
    model = KeyInfo if not secrets else NewKeyInfo
    return model.of(key, now=utc_now(), **secrets).model_dump(mode="json", exclude_none=True)


def _show_once(settings: Settings, text: str, key: ApiKey) -> None:
    secret = webhook_secret(settings.stores.secret_bytes, key.id)
    if wants_json():
        show_json(_info(key, key=text, webhook_secret=secret))
        return
    for line in (text, secret):
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
