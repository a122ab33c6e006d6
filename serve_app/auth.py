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
from serve_app.access.permissions import require_scope
from serve_app.middleware.queries import require_known_query
from serve_app.middleware.rate_limits import note_limits
from serve_app.refusals import KeyRefused
from serve_app.replica import replica_of

_AUTHORIZATION = "authorization"


async def caller(connection: HTTPConnection) -> ApiKey:
    """The caller's key as it is now; call it again after a long wait.

    Raises KeyMissing, KeyInvalid.
    """
    return await replica_of(connection).authenticator.authenticate(authorization_of(connection))


def authorization_of(connection: HTTPConnection) -> str:
    """The value of `Authorization`, or what was noted in its place."""
    noted: str | None = getattr(connection.state, _AUTHORIZATION, None)
    return connection.headers.get("authorization", "") if noted is None else noted


def note_authorization(connection: HTTPConnection, value: str) -> None:
    """The key of this request came at another place than its header."""
    setattr(connection.state, _AUTHORIZATION, value)


def may_go_on(
    connection: HTTPConnection, key: ApiKey, scope: Scope = Scope.READ
) -> Callable[[], Awaitable[bool]]:
    """Whether what is read with this key may be read on: it may be revoked meanwhile."""

    async def ask() -> bool:
        try:
            now = await caller(connection)
            require_scope(now, scope)
        except KeyRefused:
            return False
        except DatabaseUnavailable:
            return True  # nor can it be revoked meanwhile
        return now.owner == key.owner

    return ask


class Requires(SecurityBase):
    """A dependency that gives the caller's key, which must have a scope and be within its rate.

    After the key it looks at the query, too: whoever has none is told nothing about parameters.

    Raises KeyMissing, KeyInvalid, RateExceeded, ScopeMissing, RequestValidationError.

    Of FastAPI it takes only the base class that describes it in the OpenAPI document: FastAPI's
    `HTTPBearer` would run beside this one on every request.
    """

    model = HTTPBearer(bearerFormat="dk_...")
    scheme_name = "bearer"

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def __call__(self, request: Request) -> ApiKey:
        key = await caller(request)
        rates = replica_of(request).rates
        try:
            rates.take(key)
        finally:
            note_limits(request, rates.standings(key))
        require_scope(key, self._scope)
        require_known_query(request)
        return key


READ = Depends(Requires(Scope.READ))
"""One for a router and its handlers, so that FastAPI asks it once for a request."""

METRICS = Depends(Requires(Scope.METRICS))

GenerateKey = Annotated[ApiKey, Depends(Requires(Scope.GENERATE))]
ReadKey = Annotated[ApiKey, READ]
CancelKey = Annotated[ApiKey, Depends(Requires(Scope.CANCEL))]
EndpointsKey = Annotated[ApiKey, Depends(Requires(Scope.ENDPOINTS))]
AdminKey = Annotated[ApiKey, Depends(Requires(Scope.ADMIN))]
