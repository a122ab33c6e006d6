"""Routes of health: does this process answer, and does the service take jobs."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from events.errors import DatabaseUnavailable
from events.store.records import Scope
from serve_app.access.permissions import require_scope
from serve_app.api_error import ApiError, retry_after
from serve_app.auth import caller
from serve_app.openapi.error_responses import documented
from serve_app.refusals import KeyRefused
from serve_app.replica import ReplicaDep

router = APIRouter(prefix="/health", tags=["health"])


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(Health):
    warnings: list[str] | None = Field(
        default=None,
        description="For administrators' keys, what is probably set up otherwise than it was "
        "meant: variables that are no settings, a models folder that is missing or has no "
        "checkpoint",
    )


@router.head("/live", include_in_schema=False)
@router.get("/live", responses=documented(500))
async def live() -> Health:
    """This process answers."""
    return Health()


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model_exclude_none=True, responses=documented(500, 503))
async def ready(request: Request, replica: ReplicaDep) -> Readiness:
    """The event log takes writes."""
    reason = await replica.services.health.ready()
    if reason is not None:
        message = "The service is not ready."
        raise ApiError(503, "not_ready", message, details=reason, headers=retry_after(5))
    if not await _is_administrator(request):
        return Readiness()
    return Readiness(warnings=await replica.setup_warnings.now() or None)


async def _is_administrator(request: Request) -> bool:
    """False where it cannot be told: whether the service is ready does not hang on it."""
    try:
        require_scope(await caller(request), Scope.ADMIN)
    except (KeyRefused, DatabaseUnavailable):
        return False
    return True
