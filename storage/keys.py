"""The keys that files are stored under. Nothing that a caller chose is part of one."""

from __future__ import annotations

import hashlib

UPLOADS = "uploads"


def image_key(job_id: str, attempt: int, index: int) -> str:
    """All images of a job lie below its id."""
    return f"{job_id}/{attempt}/{index}.png"


def upload_key(owner: str, digest: str, upload_id: str) -> str:
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{UPLOADS}/{folder}/{digest.removeprefix('sha256:')}/{upload_id}.png"
