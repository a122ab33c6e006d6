"""The headers `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).

They tell a caller how many requests are left, before one is refused.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.access.rates import Standing

POLICY, REMAINING = "RateLimit-Policy", "RateLimit"

_STATE = "rate_limits"


class RateLimits:
    """ASGI middleware: adds what was noted of the limits of a request's key to its answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state", ()))

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start" and _STATE in state:
                MutableHeaders(scope=message).update(state[_STATE])
            await send(message)

        await self._app(scope, receive, send_with_limits)


def note_limits(request: Request, standings: Iterable[Standing]) -> None:
    """For the answer to this request."""
    policies, remaining = [], []
    for each in standings:
        name = each.limited.name.lower()
        policies.append(f'"{name}";q={each.quota};w={each.window_s}')
        remaining.append(f'"{name}";r={each.left};t={each.whole_in_s}')
    if policies:
        headers = {POLICY: ", ".join(policies), REMAINING: ", ".join(remaining)}
        setattr(request.state, _STATE, headers)
