"""`/ws`: the caller's jobs as they happen, on a websocket as ComfyUI has it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from uuid import uuid4

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from events.store.records import ApiKey, Scope
from serve_app.access.permissions import require_scope
from serve_app.adapters.comfyui.listening.session import Session
from serve_app.adapters.comfyui.prompts import CLIENT_ID
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import adapter_caller
from serve_app.auth import may_go_on
from serve_app.live.listener import Filter
from serve_app.replica import Replica, replica_of

_CLOSE_S = 2.0

router = APIRouter()


_NO_NEWS = ("without completing handshake", '"WebSocket %s"')


def _is_news(record: logging.LogRecord) -> bool:
    text = str(record.msg)  # which may be an exception
    return not any(each in text for each in _NO_NEWS)


# Uvicorn takes each refusal for an error of the application, and whoever has no key could fill the
# log with them. Refused keys are in the log of their own. Where its level is INFO, it writes the
# path and query of each websocket, which may have a key.
logging.getLogger("uvicorn.error").addFilter(_is_news)


@router.websocket(twin("/ws"))
async def websocket(websocket: WebSocket) -> None:
    """What is refused is answered as any other request is: the errors before `accept` say why.

    Raises KeyRefused, RateExceeded, TooManyStreams and what `Broadcaster.watch_owner` raises.
    """
    replica = replica_of(websocket)
    await _converse(websocket, replica, await _caller(websocket, replica))


async def _caller(websocket: WebSocket, replica: Replica) -> ApiKey:
    key = await adapter_caller(websocket)
    replica.rates.take(key)
    require_scope(key, Scope.READ)
    return key


async def _converse(websocket: WebSocket, replica: Replica, key: ApiKey) -> None:
    asked = websocket.query_params.get("clientId", "")
    client_id = asked if asked and CLIENT_ID.fullmatch(asked) else uuid4().hex
    server = websocket.scope.get("server")
    watching = replica.streams.watch_owner(key.owner, Filter(), after=None, server=server)
    async with watching as listener:
        await websocket.accept()
        session = Session(
            websocket,
            replica,
            owner=key.owner,
            client_id=client_id,
            may_go_on=may_go_on(websocket, key),
        )
        code = await session.run(listener)
    if websocket.application_state is WebSocketState.CONNECTED:
        with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):  # it may be gone already
            async with asyncio.timeout(_CLOSE_S):
                await websocket.close(code)
