"""A route of FastAPI that receives callbacks: it checks them and drops repeats."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

from fastapi import APIRouter, FastAPI, Request, Response

from darkroom_client.errors import SignatureInvalid
from darkroom_client.values import Callback
from darkroom_client.webhooks import verified

Told = Callable[[Callback], Awaitable[None]]

_REMEMBERED = 10_000
_MAX_BYTES = 2**20


def callbacks(
    app: FastAPI | APIRouter, path: str = "/task_completed", *, secret: str
) -> Callable[[Told], Told]:
    """Decorates the function that is told of each callback once, as long as this process lives.

    Where it raises, the answer is an error, and the service tries again. Drop what another process
    has had by `callback.id`.
    """

    def decorate(told: Told) -> Told:
        seen: OrderedDict[str, None] = OrderedDict()
        turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

        async def receive(request: Request) -> Response:
            body = await _body(request)
            if body is None:
                return Response(status_code=413)
            try:
                callback = verified(secret, body, request.headers)
            except SignatureInvalid:
                return Response(status_code=401)
            # A repeat may come while the function is still at the callback.
            async with turns.setdefault(callback.id, asyncio.Lock()):
                if callback.id not in seen:
                    await told(callback)
                    seen[callback.id] = None
            while len(seen) > _REMEMBERED:
                seen.popitem(last=False)
            return Response(status_code=204)

        app.add_api_route(path, receive, methods=["POST"], include_in_schema=False)
        return told

    return decorate


async def _body(request: Request) -> bytes | None:
    """None where it is longer than a callback is."""
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > _MAX_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)
