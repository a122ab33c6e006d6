"""The keys that files are stored under. Nothing that a caller chose is part of one."""

from __future__ import annotations

import hashlib

UPLOADS = "uploads"


def job_folder(job_id: str) -> str:
    """All images of a job lie below."""
    return job_id


def image_key(job_id: str, attempt: int, index: int) -> str:
    return f"{job_folder(job_id)}/{attempt}/{index}.png"


def upload_key(owner: str, digest: str, upload_id: str) -> str:
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{UPLOADS}/{folder}/{digest.removeprefix('sha256:')}/{upload_id}.png"
