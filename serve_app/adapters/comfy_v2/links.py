"""Where jobs and assets are, and for how long."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from events.job import Job
from events.log import utc_now
from events.store.records import Upload
from serve_app.services import Services

PREFIX = "/api/v2"
_NEVER = datetime(9999, 1, 1, tzinfo=UTC)
"""For what is kept for good, where the contract wants a time."""


def job_links(services: Services, job: Job) -> dict[str, str]:
    """Without a host: a caller follows them where the request went."""
    below = urlsplit(services.http_settings.effective_public_url).path
    path = f"{below}{PREFIX}/jobs/{job.id}"
    return {"self": path, "events": f"{path}/events", "cancel": f"{path}/cancel"}


def content_url(services: Services, asset_id: str) -> str:
    """It takes a key, as every route here."""
    return f"{services.http_settings.effective_public_url}{PREFIX}/assets/{asset_id}/content"


def job_expires_at(services: Services, job: Job) -> datetime:
    """An open job is kept for longer than this says."""
    days = services.retention_settings.retention_days
    return (job.ended_at or utc_now()) + timedelta(days=days) if days else _NEVER


def image_url_expires_at(services: Services, job: Job) -> datetime:
    ttl_s = services.http_settings.image_url_ttl_s
    expires_at = job_expires_at(services, job)
    return min(utc_now() + timedelta(seconds=ttl_s), expires_at) if ttl_s else expires_at


def upload_expires_at(services: Services, upload: Upload) -> datetime | None:
    """None: it is kept for good. Each job that names it puts it off."""
    days = services.retention_settings.upload_retention_days
    return upload.used_at + timedelta(days=days) if days else None


def url_expires_at(services: Services, upload: Upload) -> datetime:
    return upload_expires_at(services, upload) or _NEVER
