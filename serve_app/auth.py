"""The API key of a request, as a dependency of the handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from events.errors import DatabaseUnavailable
from events.store.records import ApiKey, Scope
from serve_app.access.authenticator import require_scope
from serve_app.middleware import note_limits, require_known_query
from serve_app.refusals import KeyRefused
from serve_app.replica import replica_of

_AUTHORIZATION = "authorization"


async def caller(connection: HTTPConnection) -> ApiKey:
    """Return the caller's key in its current state. Raises KeyMissing, KeyInvalid."""
    return await replica_of(connection).access.authenticator.authenticate(
        authorization_of(connection)
    )


def authorization_of(connection: HTTPConnection) -> str:
    """Return the header `Authorization`, or the value that `note_authorization` has set."""
    noted: str | None = getattr(connection.state, _AUTHORIZATION, None)
    return connection.headers.get("authorization", "") if noted is None else noted


def note_authorization(connection: HTTPConnection, value: str) -> None:
    """Set a value of `Authorization` for a request whose key is elsewhere, such as in the path."""
    setattr(connection.state, _AUTHORIZATION, value)


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
        rates = replica_of(request).access.rates
        try:
            rates.take(key)
        finally:
            note_limits(request, rates.standings(key))
        require_scope(key, self._scope)
        require_known_query(request)
        return key


READ = Depends(Requires(Scope.READ))
"""A dependency that a router and its handlers share, so that FastAPI calls it once per request."""

METRICS = Depends(Requires(Scope.METRICS))

GenerateKey = Annotated[ApiKey, Depends(Requires(Scope.GENERATE))]
ReadKey = Annotated[ApiKey, READ]
CancelKey = Annotated[ApiKey, Depends(Requires(Scope.CANCEL))]
EndpointsKey = Annotated[ApiKey, Depends(Requires(Scope.ENDPOINTS))]
AdminKey = Annotated[ApiKey, Depends(Requires(Scope.ADMIN))]
