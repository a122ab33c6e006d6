"""Route that shows the usage and the limits of the caller's owner."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from events.store.records import Scope
from serve_app.auth import ReadKey
from serve_app.openapi.document import documented
from serve_app.replica import SubmissionDep

router = APIRouter(prefix="/v1/usage", tags=["keys"], responses=documented(400, 401, 403, 500, 503))


class Amount(BaseModel):
    used: int
    limit: int | None = Field(description="null: no limit")


class Usage(BaseModel):
    """The usage of an owner over all keys. A key may have lower limits of its own."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "owner": "alice",
                "key_id": "k3v9x1m7q2ab",
                "scopes": ["cancel", "generate", "read"],
                "open_jobs": {"used": 3, "limit": 2000},
                "log_bytes": {"used": 5120, "limit": 536870912},
                "result_bytes": {"used": 1204224, "limit": 21474836480},
                "upload_bytes": {"used": 0, "limit": None},
            }
        }
    )

    owner: str
    key_id: str = Field(description="The id of the key of this request")
    scopes: list[Scope] = Field(description="The scopes of the key of this request")
    open_jobs: Amount = Field(description="Jobs that wait or run")
    log_bytes: Amount = Field(description="Bytes of all jobs in the event log")
    result_bytes: Amount = Field(description="Bytes of the images of all jobs")
    upload_bytes: Amount = Field(
        description="Bytes of uploads. A file of less than 65,536 bytes counts as 65,536"
    )


@router.get("")
async def show_usage(key: ReadKey, submission: SubmissionDep) -> Usage:
    """Show the usage and the limits of the key's owner. The figures may be one second old."""
    limits = submission.owner_limits.settings
    kept = await submission.owner_limits.kept_bytes(key.owner)
    open_jobs = await submission.owner_limits.open_jobs(key.owner)
    return Usage(
        owner=key.owner,
        key_id=key.id,
        scopes=sorted(key.scopes),
        open_jobs=Amount(used=open_jobs, limit=limits.max_open_jobs or None),
        log_bytes=Amount(used=kept.log_bytes, limit=limits.max_log_bytes or None),
        result_bytes=Amount(used=kept.result_bytes, limit=limits.max_result_bytes or None),
        upload_bytes=Amount(used=kept.upload_bytes, limit=limits.max_upload_bytes or None),
    )
