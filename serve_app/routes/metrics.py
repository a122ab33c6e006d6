"""Route of the metrics: one address for the whole service."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from serve_app.auth import METRICS
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep
from telemetry.exposition import CONTENT_TYPE

router = APIRouter(
    tags=["health"], dependencies=[METRICS], responses=documented(401, 403, 500, 503)
)

_ANSWER: dict[int | str, dict[str, Any]] = {
    # Without its media type, for which generators of clients leave a route out.
    200: {"description": "As text, of every process that answered in time, a second old at most"}
}


@router.get("/metrics", response_class=Response, responses=_ANSWER)
async def metrics(replica: ReplicaDep) -> Response:
    """Metrics of the service in Prometheus' text format. The key needs the scope `metrics`."""
    return Response(await replica.metrics.page(), media_type=CONTENT_TYPE)
