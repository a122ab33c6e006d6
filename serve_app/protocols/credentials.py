"""Reads API keys in the forms that clients of other protocols send.

Such a client may also send the key as the password of Basic (RFC 7617), or as the query parameter
`token`.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from events.store.records import ApiKey, Scope
from serve_app.auth import Requires, authorization_of, caller, note_authorization

TOKEN = "token"
_OF_OWN_PAGES = {"same-origin", "none"}
"""Values of Sec-Fetch-Site (Fetch Metadata). `none` means that a person typed the address."""


class ProtocolRequires(Requires):
    """Like `Requires`, but accepts the key in several places, and unknown query parameters.

    Raises KeyMissing, KeyInvalid, RateExceeded, ScopeMissing.
    """

    async def __call__(self, request: Request) -> ApiKey:
        key = await protocol_caller(request)
        self.require_allowed(request, key)
        return key


async def protocol_caller(connection: HTTPConnection) -> ApiKey:
    """Return the key of a request or a websocket. Raises KeyMissing, KeyInvalid."""
    note_authorization(connection, _authorization(connection))
    return await caller(connection)


def _authorization(connection: HTTPConnection) -> str:
    """Return the key in the form of a bearer `Authorization` header; empty if there is no key."""
    given = authorization_of(connection).strip()
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
    """Return whether the request comes from a page of this origin, or from no page.

    A browser adds the password of Basic authentication also to requests from pages of other
    origins. By loading an image or a script, such a page could detect whether a path exists. A
    browser marks these requests by the header Origin or Sec-Fetch-Site, which other programs do not
    send.
    """
    headers = connection.headers
    if headers.get("sec-fetch-site", "none") not in _OF_OWN_PAGES:
        # A page cannot read the answer to a link, so navigation by a link is safe.
        is_link = headers.get("sec-fetch-mode") == "navigate" and _is_reading(connection)
        return is_link and "origin" not in headers
    origin = headers.get("origin")
    return origin is None or origin.partition("://")[2] == headers.get("host")


def _is_reading(connection: HTTPConnection) -> bool:
    return connection.scope.get("method") in {"GET", "HEAD"}


GENERATE = ProtocolRequires(Scope.GENERATE)
READ = ProtocolRequires(Scope.READ)
CANCEL = ProtocolRequires(Scope.CANCEL)

GenerateProtocolKey = Annotated[ApiKey, Depends(GENERATE)]
ReadProtocolKey = Annotated[ApiKey, Depends(READ)]
CancelProtocolKey = Annotated[ApiKey, Depends(CANCEL)]
