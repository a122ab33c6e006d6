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
TEXT = "text/plain"
_MEDIA_TYPES = {
    "png": PNG,
    "webp": WEBP,
    "jpg": JPEG,
    "jpeg": JPEG,
    "gif": "image/gif",
    "avif": "image/avif",
    "bmp": "image/bmp",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "exr": "image/x-exr",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "mkv": "video/x-matroska",
    "mov": "video/quicktime",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "m4a": "audio/mp4",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "glb": "model/gltf-binary",
    "obj": "model/obj",
    "ply": "model/ply",
    "stl": "model/stl",
    "latent": SAFETENSORS,
    "safetensors": SAFETENSORS,
    "txt": TEXT,
    "srt": TEXT,
    "csv": "text/csv",
    "json": "application/json",
}
"""Media types by the suffix of a file. The first suffix of a type is that of our own files."""
_SUFFIXES = {media_type: suffix for suffix, media_type in reversed(_MEDIA_TYPES.items())}
FileKind: TypeAlias = Literal["image", "video", "audio", "model", "text", "file"]
_MEDIA: tuple[FileKind, ...] = ("image", "video", "audio")
_KINDS: tuple[FileKind, ...] = (*_MEDIA, "model", "text")
_SUFFIX_OF_OTHERS = "bin"
_OF_FOLDER = re.compile(r" \[(?:output|temp)\]$")
_FOLDERS = re.compile(r"(?: \[(?:input|output|temp)\])+$")
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


def without_folder(name: str) -> str:
    """Remove ComfyUI's ` [output]` or ` [temp]` from the name of an upload.

    An upload whose type is one of these two folders has it in its name.
    """
    return _OF_FOLDER.sub("", name)


def without_folders(name: str) -> str:
    """Remove all of ` [input]`, ` [output]` and ` [temp]` from the end of a name."""
    return _FOLDERS.sub("", name)


def media_type_of(filename: str) -> str:
    """Return the media type of a file by its suffix, or `application/octet-stream`."""
    return _MEDIA_TYPES.get(filename.rpartition(".")[2].lower(), "application/octet-stream")


def is_media_name(filename: str) -> bool:
    """Return whether an upload of this name is an image, a video, an audio file or a latent."""
    filename = without_folder(filename)
    group = media_type_of(filename).partition("/")[0]
    return "." in filename and (group in _MEDIA or filename.lower().endswith(".latent"))


def kind_of(media_type: str | None) -> FileKind:
    """Return the kind of a file. A `media_type` of None means PNG."""
    group = (media_type or PNG).partition("/")[0]
    return group if group in _KINDS else "file"


def file_name(index: int, media_type: str | None) -> str:
    """Return the name of a job's file. A `media_type` of None means PNG.

    An unknown media type, which a later version may have stored, gets a general suffix.
    """
    return f"{index}.{_SUFFIXES.get(media_type or PNG, _SUFFIX_OF_OTHERS)}"


def poster_name(index: int) -> str:
    """Return the name of the poster of a job's video."""
    return f"{index}-poster.{_SUFFIXES[JPEG]}"


def file_key(job_id: str, attempt: int, name: str) -> str:
    """Return the key of a job's file. All files of a job are in a folder with the id of the job."""
    return f"{job_id}/{attempt}/{name}"


def upload_key(owner: str, digest: str, upload_id: str) -> str:
    folder = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{UPLOADS}/{folder}/{digest.removeprefix('sha256:')}/{upload_id}.png"


def copy_name(job_id: str, index: int, media_type: str | None) -> str:
    """Return the name of an upload that copies a job's file. The copy of an image is a PNG."""
    is_image = kind_of(media_type) == "image"
    return f"{copies_prefix(job_id)}{file_name(index, PNG if is_image else media_type)}"


def copies_prefix(job_id: str) -> str:
    """Return the prefix of the names of all uploads that copy a job's files."""
    return f"output-{job_id}-"
