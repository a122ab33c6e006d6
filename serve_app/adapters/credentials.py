"""API keys as the clients of other protocols send them.

Beside `Authorization: Bearer`, these clients put a key where their own programs let them: into the
password of Basic (RFC 7617), into the query as `token`, or into the path, where a route has a place
for it. Darkroom's own routes take none of these.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from events.store.records import ApiKey, Scope
from serve_app.access.permissions import require_scope
from serve_app.auth import Requires, caller, note_authorization
from serve_app.middleware.rate_limits import note_limits
from serve_app.replica import replica_of

TOKEN = "token"
PLACE = "twin"
"""The parameter of a path that may begin with `key/<key>/`."""
_IN_PATH = re.compile(r"key/([^/]+)/")
_OF_OWN_PAGES = {"same-origin", "none"}
"""Values of Sec-Fetch-Site (Fetch Metadata): `none` is what a person has typed."""


def without_key(path: str) -> str:
    """A path that may be written down."""
    return _IN_PATH.sub("key/-/", path, count=1)


class AdapterRequires(Requires):
    """As `Requires`, with a key at any of these places, and with any query.

    Raises KeyMissing, KeyInvalid, RateExceeded, ScopeMissing.
    """

    async def __call__(self, request: Request) -> ApiKey:
        key = await adapter_caller(request)
        rates = replica_of(request).rates
        try:
            rates.take(key)
        finally:
            note_limits(request, rates.standings(key))
        require_scope(key, self._scope)
        return key


async def adapter_caller(connection: HTTPConnection) -> ApiKey:
    """The key of a request or a websocket. Raises KeyMissing, KeyInvalid."""
    note_authorization(connection, _authorization(connection))
    return await caller(connection)


def _authorization(connection: HTTPConnection) -> str:
    """What `Authorization: Bearer` would say; empty where there is no key."""
    if in_path := _IN_PATH.match(connection.path_params.get(PLACE, "")):
        return f"Bearer {in_path[1]}"  # beside it clients send passwords of nobody
    given = connection.headers.get("authorization", "").strip()
    scheme, _, text = given.partition(" ")
    if scheme.lower() == "basic":
        key = _password(text.strip()) if _is_of_own_page(connection) else ""
        return f"Bearer {key}"
    token = connection.query_params.get(TOKEN)
    return f"Bearer {token}" if not given and token else given


def _password(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _is_of_own_page(connection: HTTPConnection) -> bool:
    """A browser adds the password of Basic by itself, to requests of pages of other origins, too.

    It names their origin, or at least says that there is another one: pictures and scripts, too,
    tell the page that has them whether they were there. A program that is no browser says nothing.
    """
    headers = connection.headers
    if headers.get("sec-fetch-site", "none") not in _OF_OWN_PAGES:
        # A link that leads here shows nothing to the page that has it.
        is_link = headers.get("sec-fetch-mode") == "navigate" and _is_reading(connection)
        return is_link and "origin" not in headers
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _is_reading(connection: HTTPConnection) -> bool:
    return connection.scope.get("method") in {"GET", "HEAD"}


GENERATE = AdapterRequires(Scope.GENERATE)
READ = AdapterRequires(Scope.READ)
CANCEL = AdapterRequires(Scope.CANCEL)

GenerateAdapterKey = Annotated[ApiKey, Depends(GENERATE)]
ReadAdapterKey = Annotated[ApiKey, Depends(READ)]
CancelAdapterKey = Annotated[ApiKey, Depends(CANCEL)]
