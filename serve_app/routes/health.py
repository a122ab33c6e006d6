"""Routes of health: does this process answer, and does the service take jobs."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from serve_app.errors import ApiError, retry_after
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

router = APIRouter(prefix="/health", tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


@router.get("/live", responses=documented(500))
async def live() -> Health:
    """This process answers."""
    return Health()


@router.get("/ready", responses=documented(500, 503))
async def ready(replica: ReplicaDep) -> Health:
    """The event log takes writes."""
    reason = await replica.services.health.ready()
    if reason is not None:
        message = "The service is not ready."
        raise ApiError(503, "not_ready", message, details=reason, headers=retry_after(5))
    return Health()
