"""Names and keys of stored files. They contain no text that a caller chose."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

UPLOADS = "uploads"
PNG = "image/png"
WEBP = "image/webp"
JPEG = "image/jpeg"
SAFETENSORS = "application/x-safetensors"
_SUFFIXES = {
    PNG: "png",
    WEBP: "webp",
    JPEG: "jpg",
    SAFETENSORS: "latent",
    "image/gif": "gif",
    "video/mp4": "mp4",
    "video/webm": "webm",
    "video/x-matroska": "mkv",
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/mp4": "m4a",
    "audio/ogg": "ogg",
    "audio/x-wav": "wav",
    "model/gltf-binary": "glb",
    "text/plain": "txt",
    "application/json": "json",
}
FileKind: TypeAlias = Literal["image", "video", "audio", "model", "text", "file"]
_KINDS: tuple[FileKind, ...] = ("image", "video", "audio", "model", "text")
_SUFFIX_OF_OTHERS = "bin"
_HISTORY = re.compile(r"([^/]+)/history-(\d+)-(\d+)\.gz")


@dataclass(frozen=True, slots=True)
class HistoryName:
    """The name of a history object, which depends on the number of events in the object.

    An object with more events has another name, so a late writer cannot replace a newer object.
    """

    job_id: str
    version: int
    """The version of the last event of the job."""
    deliveries: int
    """The number of events of the job's delivery."""

    @property
    def key(self) -> str:
        """The key of the object, in the folder of the job's images."""
        return f"{self.job_id}/history-{self.version}-{self.deliveries}.gz"


def history_name(key: str) -> HistoryName | None:
    """Parse a key. Return None if it is not the key of a history object."""
    found = _HISTORY.fullmatch(key)
    return None if found is None else HistoryName(found[1], int(found[2]), int(found[3]))


def kind_of(media_type: str | None) -> FileKind:
    """Return the kind of a file. A `media_type` of None means PNG."""
    group = (media_type or PNG).partition("/")[0]
    return group if group in _KINDS else "file"


def file_name(index: int, media_type: str | None) -> str:
    """Return the name of a job's file. A `media_type` of None means PNG.

    An unknown media type, which a later version may have stored, gets a general suffix.
    """
    return f"{index}.{_SUFFIXES.get(media_type or PNG, _SUFFIX_OF_OTHERS)}"


def file_key(job_id: str, attempt: int, name: str) -> str:
    """Return the key of a job's file. All files of a job are in a folder with the id of the job."""
    return f"{job_id}/{attempt}/{name}"


def upload_key(owner: str, digest: str, upload_id: str) -> str:
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{UPLOADS}/{folder}/{digest.removeprefix('sha256:')}/{upload_id}.png"


def copy_name(job_id: str, index: int, media_type: str | None) -> str:
    """Return the name of an upload that copies a job's file. The copy of an image is a PNG."""
    suffix = _SUFFIXES[SAFETENSORS if media_type == SAFETENSORS else PNG]
    return f"{copies_prefix(job_id)}{index}.{suffix}"


def copies_prefix(job_id: str) -> str:
    """Return the prefix of the names of all uploads that copy a job's files."""
    return f"output-{job_id}-"
