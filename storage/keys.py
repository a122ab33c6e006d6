"""Names and keys of stored files. They contain nothing that a caller chose."""

from __future__ import annotations

import hashlib

UPLOADS = "uploads"
ARCHIVE = "archive"
PNG = "image/png"
WEBP = "image/webp"
JPEG = "image/jpeg"
SAFETENSORS = "application/x-safetensors"
_SUFFIXES = {PNG: "png", WEBP: "webp", JPEG: "jpg", SAFETENSORS: "latent"}
_SUFFIX_OF_OTHERS = "bin"


def file_name(index: int, media_type: str | None) -> str:
    """The name of a job's file; `media_type` None means a PNG image.

    One that this version does not know is that of a later version's file, which is shown as well.
    """
    return f"{index}.{_SUFFIXES.get(media_type or PNG, _SUFFIX_OF_OTHERS)}"


def file_key(job_id: str, attempt: int, name: str) -> str:
    """All files of a job lie below its id."""
    return f"{job_id}/{attempt}/{name}"


def upload_key(owner: str, digest: str, upload_id: str) -> str:
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{UPLOADS}/{folder}/{digest.removeprefix('sha256:')}/{upload_id}.png"


def copy_name(job_id: str, index: int, media_type: str | None) -> str:
    """The name of an upload that is a copy of a job's file. Inputs have two forms."""
    suffix = _SUFFIXES[SAFETENSORS if media_type == SAFETENSORS else PNG]
    return f"{copies_prefix(job_id)}{index}.{suffix}"


def copies_prefix(job_id: str) -> str:
    """With what the names of all copies of a job's files begin."""
    return f"output-{job_id}-"
