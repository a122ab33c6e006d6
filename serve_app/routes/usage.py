"""What the caller's owner uses of their limits."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from events.store.records import Scope
from serve_app.auth import ReadKey
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep

router = APIRouter(prefix="/v1/usage", tags=["keys"], responses=documented(400, 401, 403, 500, 503))


class Amount(BaseModel):
    used: int
    limit: int | None = Field(description="null: any number")


class Usage(BaseModel):
    """Of an owner with all keys together. A key may have lower limits of its own."""

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
    key_id: str = Field(description="Of the key that asks")
    scopes: list[Scope] = Field(description="What that key may do")
    open_jobs: Amount = Field(description="Jobs that wait or run")
    log_bytes: Amount = Field(description="What all jobs take in the event log")
    result_bytes: Amount = Field(description="What the images of all jobs take")
    upload_bytes: Amount = Field(description="What input images take; a small one counts 65536")


@router.get("")
async def show_usage(key: ReadKey, replica: ReplicaDep) -> Usage:
    """What the owner of the key uses, and how much they may use. About a second old."""
    limits, acceptance = replica.services.owner_settings, replica.acceptance
    kept = await acceptance.owned_bytes.kept(key.owner)
    open_jobs = await acceptance.open_jobs.of_owner(key.owner)
    return Usage(
        owner=key.owner,
        key_id=key.id,
        scopes=sorted(key.scopes),
        open_jobs=Amount(used=open_jobs, limit=limits.max_open_jobs or None),
        log_bytes=Amount(used=kept.log_bytes, limit=limits.max_log_bytes or None),
        result_bytes=Amount(used=kept.result_bytes, limit=limits.max_result_bytes or None),
        upload_bytes=Amount(used=kept.upload_bytes, limit=limits.max_upload_bytes or None),
    )
