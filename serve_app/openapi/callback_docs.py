"""Documents the request that a receiver of callbacks gets. Nothing here serves it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.routing import BaseRoute

from events.wire.callbacks import CallbackBody


def callback_routes(path: str) -> list[BaseRoute]:
    """The route of the receiver, for one generate path. `document.finish` names it."""
    router = APIRouter()
    router.add_api_route(
        "{$request.query.callback_url}",
        task_completed,
        methods=["POST"],
        operation_id=path,
        response_model=None,
        responses={200: {"description": "Received. Any status from 200 to 299 will do"}},
    )
    return router.routes


def task_completed(
    body: CallbackBody,
    webhook_id: Annotated[str, Header(description="The same on every try: drop repeats by it")],
    webhook_timestamp: Annotated[str, Header(description="Unix time of this try, in seconds")],
    webhook_signature: Annotated[
        str,
        Header(
            description="Standard Webhooks: `v1,<base64>` by the API key's own secret, then, each "
            "behind a space, those by the secrets of its owner's other keys"
        ),
    ],
) -> None:
    """The job has ended, or what else `callback_events` asks for. The body is its result then."""
