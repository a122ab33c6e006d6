"""Bodies of the requests and answers that administer API keys."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from events.ids import ENDPOINT_ID
from events.log import utc_now
from events.store.records import ApiKey, KeyLimits, Scope
from events.types import Priority
from serve_app.openapi.document import model_body
from settings.fields import HostPattern
from settings.keys import ImageFormat

USUAL_SCOPES = (Scope.GENERATE, Scope.READ, Scope.CANCEL)
_LAST_EXPIRY = datetime(3000, 1, 1, tzinfo=UTC)
_LONGEST_LIST = 100
_MOST_MEMBERS = 100


def _in_utc(time: datetime) -> datetime:
    """Convert a time to UTC. Times after 2999 are refused, because sums with them may overflow."""
    if time >= _LAST_EXPIRY:
        raise ValueError("must be before the year 3000; for a key that never expires, leave it out")
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("is before the year 1") from error


def _not_past(time: datetime) -> datetime:
    if time <= utc_now():
        raise ValueError("is in the past, so the key would never work")
    return time


def _plain(name: str) -> str:
    """Refuse a name that looks like another name."""
    if name != name.strip() or not name.isprintable():
        raise ValueError(
            "must not begin or end with a space, or have invisible characters or other spaces"
        )
    return name


StoredName = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")
]
"""The name of an owner or a key, which an earlier version may have accepted."""
Name = Annotated[StoredName, AfterValidator(_plain)]
Expiry = Annotated[AwareDatetime, AfterValidator(_in_utc)]
EndpointPattern = Annotated[str, Field(pattern=rf"{ENDPOINT_ID}|^\*$")]
# Validation stops at the first invalid item. Building the errors of all items could take seconds.
Scopes = Annotated[frozenset[Scope], Field(fail_fast=True)]
EndpointPatterns = Annotated[tuple[EndpointPattern, ...], Field(fail_fast=True)]
CallbackHosts = Annotated[tuple[HostPattern, ...], Field(fail_fast=True)]


class Members(BaseModel):
    """An object that allows only known members."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_few(cls, content: Any) -> Any:
        """Limit the members, because the answer has an error for each unknown member."""
        if isinstance(content, dict) and len(content) > _MOST_MEMBERS:
            raise ValueError(f"has more than {_MOST_MEMBERS} members")
        return content


class Limits(Members):
    """An absent member has its default value.

    Some default values are settings (`DARKROOM_KEY_*`). By default, rates, jobs and costs are not
    limited.
    """

    rate_per_s: float | None = Field(
        default=None, ge=0, le=1e6, description="Requests per second; 0: no limit"
    )
    burst: int | None = Field(
        default=None,
        ge=1,
        le=10**6,
        description="The number of requests that may be sent at once after a pause",
    )
    max_open_jobs: int | None = Field(
        default=None, ge=0, le=10**9, description="Jobs that wait or run; 0: no limit"
    )
    max_cost: float | None = Field(
        default=None,
        ge=0,
        le=1e15,
        description="Megapixel-steps of one job; 0: only the limit of the endpoint",
    )
    embed_metadata: bool | None = Field(
        default=None, description="Whether images contain their graph, prompt and seed"
    )
    image_format: ImageFormat | None = Field(
        default=None, description="The format of images if a request names none"
    )
    image_quality: int | None = Field(
        default=None,
        ge=1,
        le=100,
        description="The quality of WebP and JPEG images if a request names none. A WebP of 100 is "
        "lossless",
    )
    weight: float | None = Field(
        default=None,
        ge=0.1,
        le=100,
        description="The weight of the owner's jobs when owners share an endpoint. Absent: 1",
    )
    priority: Priority | None = Field(
        default=None,
        description="The priority class of the jobs: `high`, `normal` and `low` share an endpoint "
        "in the ratio 16 : 4 : 1. Absent: `normal`",
    )
    endpoints: EndpointPatterns | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_LIST,
        description="Ids of the endpoints that the key may use, or `*` for all endpoints",
    )
    callback_hosts: CallbackHosts | None = Field(
        default=None,
        min_length=1,
        max_length=_LONGEST_LIST,
        description="Hosts to which callbacks may be sent: a host name, `*.example.com` for every "
        "name below `example.com`, or `*` for all hosts",
    )

    def values(self) -> KeyLimits:
        return KeyLimits(**self.model_dump())


class NewKey(Members):
    owner: Name = Field(description="The owner of the jobs. All keys of an owner share the jobs")
    name: Name | None = Field(
        default=None,
        description="A name that tells the keys of an owner apart. Absent: the name of the owner",
    )
    scopes: Scopes = frozenset(USUAL_SCOPES)
    expires_at: Annotated[Expiry, AfterValidator(_not_past)] | None = None
    limits: Limits = Limits()


class KeyChanges(Members):
    """Absent members stay unchanged. A limit that is null gets its default value again."""

    name: Name | None = None
    scopes: Scopes | None = None
    expires_at: Expiry | None = Field(default=None, description="null: the key never expires")
    limits: Limits = Limits()

    def columns(self) -> dict[str, Any]:
        given: dict[str, Any] = self.model_dump(exclude_unset=True)
        limits: dict[str, Any] = given.pop("limits", {})
        required = {"name", "scopes"}
        kept = {k: v for k, v in given.items() if v is not None or k not in required}
        return kept | limits


_EXAMPLE: dict[str, Any] = {
    "id": "k3v9x1m7q2ab",
    "owner": "alice",
    "name": "alice's site",
    "scopes": ["cancel", "generate", "read"],
    "state": "live",
    "created_at": "2026-01-31T12:00:00Z",
    "expires_at": "2099-12-31T12:00:00Z",
    "limits": {
        "rate_per_s": 20,
        "burst": 40,
        "max_open_jobs": 200,
        "endpoints": ["default"],
        "callback_hosts": ["*.alice.example"],
    },
}
_CREATED = {"owner", "name", "scopes", "expires_at", "limits"}
CREATE_BODY = model_body(NewKey, {k: v for k, v in _EXAMPLE.items() if k in _CREATED})
CHANGE_BODY = model_body(KeyChanges, {"limits": {"rate_per_s": 5, "max_open_jobs": None}})


class KeyInfo(BaseModel):
    model_config = ConfigDict(json_schema_extra={"example": _EXAMPLE})

    id: str
    owner: str
    name: str
    scopes: list[Scope]
    state: Literal["live", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    replaced_by: str | None = Field(default=None, description="Id of the new key after a rotation")
    limits: Limits

    @classmethod
    def of(cls, key: ApiKey, /, *, now: datetime, **secrets: str) -> Self:
        state = "live" if key.is_live(now) else "revoked" if key.revoked_at else "expired"
        values = asdict(key) | {"scopes": sorted(key.scopes), "state": state}
        del values["secret_sha256"]
        return cls.model_validate(values | secrets)


class NewKeyInfo(KeyInfo):
    """A new key with its secrets. No other answer contains the secrets."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                **_EXAMPLE,
                "key": "dk_k3v9x1m7q2ab_…",
                "webhook_secret": "whsec_…",
            }
        }
    )

    key: str = Field(
        description="The key, to be sent as `Authorization: Bearer <key>`. It is shown only in "
        "this answer"
    )
    webhook_secret: str = Field(
        description="The secret that signs the callbacks of this key's jobs"
    )


class KeyPage(BaseModel):
    keys: list[KeyInfo] = Field(description="Oldest first")
    next_cursor: str | None = Field(
        default=None, description="The `cursor` of the next page; absent on the last page"
    )
