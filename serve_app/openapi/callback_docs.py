"""Documents the request that a receiver of callbacks gets. Nothing here serves it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from starlette.routing import BaseRoute

from events.result import ResultResponse


def callback_routes(operation_id: str) -> list[BaseRoute]:
    """The route of the receiver, for one generate path: an operation id must be unique."""
    router = APIRouter()
    router.add_api_route(
        "{$request.query.callback_url}",
        task_completed,
        methods=["POST"],
        operation_id=operation_id,
        response_model=None,
        responses={200: {"description": "Received. Any status from 200 to 299 will do"}},
    )
    return router.routes


def task_completed(
    body: ResultResponse,
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
    """The job has ended. The body is the result, as the result endpoint answers it."""
