"""`/ws`: the caller's jobs as they happen, on a websocket as ComfyUI has it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from events.errors import ServiceError
from events.store.records import ApiKey, Scope
from serve_app.access.permissions import require_scope
from serve_app.adapters.comfyui.prompts import CLIENT_ID
from serve_app.adapters.comfyui.refusals import with_basic
from serve_app.adapters.comfyui.session import Session
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import adapter_caller
from serve_app.auth import may_go_on
from serve_app.errors import answer_of
from serve_app.live.listener import Filter
from serve_app.replica import Replica, replica_of

_CLOSE_S = 2.0

router = APIRouter()


@router.websocket(twin("/ws"))
async def websocket(websocket: WebSocket) -> None:
    """What is refused gets an answer of HTTP, as any other request."""
    replica = replica_of(websocket)
    try:
        key = await _caller(websocket, replica)
        await _converse(websocket, replica, key)
    except ServiceError as error:
        if websocket.application_state is WebSocketState.CONNECTING:
            told = answer_of(error)
            replica.metrics.note_refusal(told.type)
            await websocket.send_denial_response(with_basic(told))


async def _caller(websocket: WebSocket, replica: Replica) -> ApiKey:
    """Raises KeyRefused, RateExceeded."""
    key = await adapter_caller(websocket)
    replica.rates.take(key)
    require_scope(key, Scope.READ)
    return key


async def _converse(websocket: WebSocket, replica: Replica, key: ApiKey) -> None:
    """Raises TooManyStreams and what `Broadcaster.watch_owner` raises."""
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
