"""A FastAPI route that receives callbacks, verifies their signatures and drops repeats."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from fastapi import APIRouter, FastAPI, Request, Response

from darkroom_client.errors import SignatureInvalid
from darkroom_client.values import Callback
from darkroom_client.webhooks import verified

Handler = Callable[[Callback], Awaitable[None]]

_REMEMBERED = 10_000
_MAX_BYTES = 2**20


def callbacks(
    app: FastAPI | APIRouter, path: str = "/task_completed", *, secret: str
) -> Callable[[Handler], Handler]:
    """Decorate the function that handles callbacks. This process calls it once for each callback.

    If the function raises, the service receives an error and sends the callback again. If you run
    several processes, the function must drop repeats by `callback.id`.
    """

    def decorate(handler: Handler) -> Handler:
        seen: OrderedDict[str, None] = OrderedDict()
        locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

        async def receive(request: Request) -> Response:
            body = await _body(request)
            if body is None:
                return Response(status_code=413)
            try:
                callback = verified(secret, body, request.headers)
            except SignatureInvalid:
                return Response(status_code=401)
            # The same callback may arrive again while the handler still runs.
            async with locks.setdefault(callback.id, asyncio.Lock()):
                if callback.id not in seen:
                    await handler(callback)
                    seen[callback.id] = None
            while len(seen) > _REMEMBERED:
                seen.popitem(last=False)
            return Response(status_code=204)

        app.add_api_route(path, receive, methods=["POST"], include_in_schema=False)
        return handler

    return decorate


async def _body(request: Request) -> bytes | None:
    """Return the body of the request, or None if it is larger than any callback."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > _MAX_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)
