"""The caller of a request: dependencies that find the API key and check its scope and rate.

Whatever needs no HTTP is in `access/`, because acceptance also uses it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, get_args, get_origin

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.models import HTTPBearer
from fastapi.routing import APIRoute
from fastapi.security.base import SecurityBase
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from events.errors import DatabaseUnavailable
from events.store.records import ApiKey, Scope
from serve_app.access.api_keys import require_scope
from serve_app.access.rates import Standing
from serve_app.refusals import KeyRefused
from serve_app.replica import replica_of

_AUTHORIZATION = "authorization"
API_KEY_HEADER = "X-API-Key"
_IN_PATH = re.compile(r"/key/([^/]+)(/.*)?", re.DOTALL)
POLICY, REMAINING = "RateLimit-Policy", "RateLimit"
_STATE = "rate_limits"
_SHOWN = 50
"""The largest number of unknown parameters in one error."""


async def caller(connection: HTTPConnection) -> ApiKey:
    """Return the caller's key in its current state. Raises KeyMissing, KeyInvalid."""
    return await replica_of(connection).callers.authenticator.authenticate(
        authorization_of(connection)
    )


def authorization_of(connection: HTTPConnection) -> str:
    """Return the key of a request in the form of the header `Authorization`.

    A value that `note_authorization` or `without_key` has set precedes `X-API-Key`, which precedes
    `Authorization`.
    """
    noted: str | None = getattr(connection.state, _AUTHORIZATION, None)
    if noted is not None:
        return noted
    key = connection.headers.get(API_KEY_HEADER)
    return f"Bearer {key}" if key else connection.headers.get("authorization", "")


def note_authorization(connection: HTTPConnection, value: str) -> None:
    """Set a value of `Authorization` for a request whose key is elsewhere, such as in the query."""
    setattr(connection.state, _AUTHORIZATION, value)


def without_key(scope: AsgiScope) -> AsgiScope:
    """Return the scope of a request for `/key/<key>/<path>` as one for `/<path>` with this key.

    This is for programs that have a field for an address only. The key is removed before anything
    else reads the path, so that it cannot reach logs, traces or errors.
    """
    found = _IN_PATH.fullmatch(scope["path"])
    if found is None:
        return scope
    state = {**scope.get("state", {}), _AUTHORIZATION: f"Bearer {found[1]}"}
    rest = b"".join(scope.get("raw_path", b"").split(b"/", 3)[3:])
    return {**scope, "path": found[2] or "/", "raw_path": b"/" + rest, "state": state}


def not_stored(send: Send) -> Send:
    """Return a `send` whose answer no cache keeps, because its address contains a key."""

    async def send_not_stored(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Cache-Control"] = "no-store"
        await send(message)

    return send_not_stored


def key_check(
    connection: HTTPConnection, key: ApiKey, scope: Scope = Scope.READ
) -> Callable[[], Awaitable[bool]]:
    """Return a function that tells whether the key of a long request is still valid."""

    async def ask() -> bool:
        try:
            now = await caller(connection)
            require_scope(now, scope)
        except KeyRefused:
            return False
        except DatabaseUnavailable:
            # Nobody can revoke a key while the database is unavailable.
            return True
        return now.owner == key.owner

    return ask


class Requires(SecurityBase):
    """A FastAPI dependency that returns the caller's key after checking its scope and rate.

    Query parameters are checked last, so that only callers with a key see errors about them. Raises
    KeyMissing, KeyInvalid, RateExceeded, ScopeMissing, RequestValidationError.

    The base class only describes the dependency in the OpenAPI document. FastAPI's `HTTPBearer` is
    not used, because it would be a second dependency that runs for every request.
    """

    model = HTTPBearer(bearerFormat="dk_...")
    scheme_name = "bearer"

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> ApiKey:
        key = await caller(request)
        self.require_allowed(request, key)
        _require_known_query(request)
        return key

    def require_allowed(self, request: Request, key: ApiKey) -> None:
        """Raises RateExceeded, ScopeMissing."""
        rates = replica_of(request).callers.rates
        try:
            rates.take(key)
        finally:
            _note_limits(request, rates.standings(key))
        require_scope(key, self._scope)


def _require_known_query(request: Request) -> None:
    """Raise RequestValidationError for unknown and repeated query parameters."""
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    known = {field.alias: field.field_info.annotation for field in route.dependant.query_params}
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = (
        name
        for name, count in given.items()
        if name not in known or (count > 1 and not _is_list(known[name]))
    )
    if errors := [_error(name, known) for name in islice(wrong, _SHOWN)]:
        raise RequestValidationError(errors)


def _is_list(annotation: Any) -> bool:
    return any(list in {each, get_origin(each)} for each in (annotation, *get_args(annotation)))


def _error(name: str, known: Collection[str]) -> dict[str, Any]:
    if name in known:
        return {
            "type": "repeated_parameter",
            "loc": ("query", name),
            "msg": "the parameter may be sent only once",
        }
    near = get_close_matches(name, known, n=1)
    if near:
        message = f"there is no such parameter; did you mean {near[0]}?"
    elif known:
        message = f"there is no such parameter; the parameters are {', '.join(known)}"
    else:
        message = "there is no such parameter; this path has no parameters"
    return {"type": "unknown_parameter", "loc": ("query", name), "msg": message}


class RateLimits:
    """ASGI middleware that adds the headers from `_note_limits` to answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state", ()))

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start" and _STATE in state:
                MutableHeaders(scope=message).update(state[_STATE])
            await send(message)

        await self._app(scope, receive, send_with_limits)


def _note_limits(request: Request, standings: Iterable[Standing]) -> None:
    """Set the rate limit headers that `RateLimits` adds to the answer to this request."""
    policies, remaining = [], []
    for each in standings:
        name = each.limited.name.lower()
        policies.append(f'"{name}";q={each.quota};w={each.window_s}')
        remaining.append(f'"{name}";r={each.left};t={each.whole_in_s}')
    if policies:
        headers = {POLICY: ", ".join(policies), REMAINING: ", ".join(remaining)}
        setattr(request.state, _STATE, headers)


READ = Depends(Requires(Scope.READ))
"""A dependency that a router and its handlers share, so that FastAPI calls it once per request."""

METRICS = Depends(Requires(Scope.METRICS))

GenerateKey = Annotated[ApiKey, Depends(Requires(Scope.GENERATE))]
ReadKey = Annotated[ApiKey, READ]
CancelKey = Annotated[ApiKey, Depends(Requires(Scope.CANCEL))]
EndpointsKey = Annotated[ApiKey, Depends(Requires(Scope.ENDPOINTS))]
AdminKey = Annotated[ApiKey, Depends(Requires(Scope.ADMIN))]
