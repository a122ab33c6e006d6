"""Routes of health and metrics."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from events.errors import DatabaseUnavailable
from events.store.records import Scope
from serve_app.access.api_keys import require_scope
from serve_app.auth import METRICS, caller
from serve_app.error_responses import ApiError, retry_after
from serve_app.openapi.document import documented
from serve_app.refusals import KeyRefused
from serve_app.replica import ApiMetricsDep, LogHealthDep, SetupWarningsDep
from telemetry.exposition import CONTENT_TYPE

router = APIRouter(prefix="/health", tags=["health"])
_ANSWER: dict[int | str, dict[str, Any]] = {
    # The media type is omitted, because generators of clients would skip the route.
    200: {
        "description": "The metrics as text, of every process that answered in time. They are at "
        "most a second old"
    }
}


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Readiness(Health):
    warnings: list[str] | None = Field(
        default=None,
        description="Only for keys of administrators: probable mistakes in the configuration, such "
        "as DARKROOM_ variables that are not settings, or a models folder that is missing or has "
        "no checkpoint",
    )


@router.head("/live", include_in_schema=False)
@router.get("/live", responses=documented(500))
async def live() -> Health:
    """Return status 200 if this process answers requests."""
    return Health()


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_model_exclude_none=True, responses=documented(500, 503))
async def ready(
    request: Request, health: LogHealthDep, setup_warnings: SetupWarningsDep
) -> Readiness:
    """Return status 200 if the event log accepts writes, and 503 otherwise."""
    reason = await health.ready()
    if reason is not None:
        message = "The service is not ready."
        raise ApiError(503, "not_ready", message, details=reason, headers=retry_after(5))
    if not await _is_administrator(request):
        return Readiness()
    return Readiness(warnings=await setup_warnings.now() or None)


async def _is_administrator(request: Request) -> bool:
    """Return whether the key has the scope `admin`; False if the key cannot be checked."""
    try:
        require_scope(await caller(request), Scope.ADMIN)
    except (KeyRefused, DatabaseUnavailable):
        return False
    return True


metrics_router = APIRouter(
    tags=["health"], dependencies=[METRICS], responses=documented(401, 403, 500, 503)
)


@metrics_router.get("/metrics", response_class=Response, responses=_ANSWER)
async def metrics(metrics: ApiMetricsDep) -> Response:
    """Return the metrics of the service in Prometheus' text format. The key needs the scope
    `metrics`.
    """
    return Response(await metrics.page(), media_type=CONTENT_TYPE)
