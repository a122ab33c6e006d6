"""Assets: uploads of the caller, and the results of their jobs.

An upload that came by this API is named for the blake3 hash of what was sent. So there is one of
the same bytes, found again by its hash among the owner's own, and no table beside that of uploads.
What is kept of it is what is kept of any upload, a PNG of its pixels: its digest is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from events.job import Job
from events.store.records import ApiKey, Upload
from events.types import ImageStored
from serve_app.adapters.comfy_v2.errors import not_found
from serve_app.adapters.comfy_v2.links import (
    content_url,
    image_url_expires_at,
    job_expires_at,
    upload_expires_at,
    url_expires_at,
)
from serve_app.job_state import owned_job
from serve_app.refusals import JobNotFound
from serve_app.replica import Replica
from serve_app.sending.stored_file import StoredFile
from serve_app.services import Services
from serve_app.uploads.store import LATENT_SUFFIX

_PREFIX = "blake3:"
_HASH = re.compile(r"blake3:[0-9a-f]{64}")
_NAME = re.compile(r"blake3-(?P<hex>[0-9a-f]{64})\.(?:png|latent)")
_UPLOAD_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OUTPUT_ID = re.compile(rf"(?P<job>{_UPLOAD_ID.pattern})-(?P<index>0|[1-9][0-9]{{0,5}})")


@dataclass(frozen=True, slots=True)
class OutputAsset:
    """A result of a job; its id has both."""

    job: Job
    image: ImageStored

    @property
    def file(self) -> StoredFile:
        return StoredFile.of_image(self.image)


def hash_of(data: bytes) -> str:
    """`blake3:` and hex; blocks for as long as that takes."""
    return f"{_PREFIX}{blake3(data).hexdigest()}"


def name_for(digest: str, *, is_latent: bool) -> str:
    return digest.replace(":", "-") + (LATENT_SUFFIX if is_latent else ".png")


def hash_in(upload: Upload) -> str | None:
    """None for an upload that came by another way."""
    named = _NAME.fullmatch(upload.name)
    return None if named is None else f"{_PREFIX}{named['hex']}"


def output_id(job: Job, image: ImageStored) -> str:
    return f"{job.id}-{image.index}"


async def upload_of_hash(services: Services, owner: str, digest: str) -> Upload | None:
    """The owner's own alone, whoever else has the same bytes. Raises DatabaseUnavailable."""
    if not _HASH.fullmatch(digest):
        return None
    for is_latent in (False, True):
        found = await services.uploads.find(owner, name_for(digest, is_latent=is_latent))
        if found is not None:
            return found
    return None


async def asset_of(replica: Replica, key: ApiKey, id: str) -> Upload | OutputAsset:
    """Raises ApiError 404, and what `owned_job` raises but JobNotFound."""
    if (named := _OUTPUT_ID.fullmatch(id)) is not None:
        try:
            job = await owned_job(replica.services, named["job"], key, with_request=False)
        except JobNotFound as error:
            raise not_found() from error
        image = job.image(int(named["index"]))
        if image is not None:
            return OutputAsset(job, image)
    elif _UPLOAD_ID.fullmatch(id):
        upload = (await replica.services.uploads.of_ids(key.owner, [id])).get(id)
        if upload is not None:
            return upload
    raise not_found()


def upload_body(services: Services, upload: Upload, **more: Any) -> dict[str, Any]:
    """An asset as the contract shows it."""
    expires_at = upload_expires_at(services, upload)
    digest = hash_in(upload)
    return {
        "id": upload.id,
        "hash": digest,
        "size_bytes": upload.size_bytes,
        "content_type": StoredFile.of_upload(upload).media_type,
        "file_path": upload.name if digest is None else None,
        "created_at": upload.created_at.isoformat(),
        "url": content_url(services, upload.id),
        "url_expires_at": url_expires_at(services, upload).isoformat(),
        "expires_at": expires_at and expires_at.isoformat(),
        **more,
    }


def output_body(services: Services, asset: OutputAsset) -> dict[str, Any]:
    job, image = asset.job, asset.image
    return {
        "id": output_id(job, image),
        "hash": None,
        "size_bytes": image.size_bytes,
        "content_type": asset.file.media_type,
        "file_path": None,
        "created_at": (job.started_at or job.submitted_at).isoformat(),
        "url": services.url_for(job.id, image),
        "url_expires_at": image_url_expires_at(services, job).isoformat(),
        "expires_at": job_expires_at(services, job).isoformat(),
        "job_id": job.id,
    }
