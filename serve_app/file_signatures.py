"""Recognises the formats of uploads by their first bytes."""

from __future__ import annotations

import re

IMAGE_SUFFIXES = ("png",)
"""The suffix of images, which are stored as PNG."""
_FORMATS: tuple[tuple[bytes, tuple[str, ...]], ...] = (
    (rb"\x89PNG\r\n\x1a\n", IMAGE_SUFFIXES),
    (rb"\xff\xd8\xff", IMAGE_SUFFIXES),
    (rb"RIFF.{4}WEBP", IMAGE_SUFFIXES),
    # HEIF and AVIF images are containers of this kind, too.
    (rb".{4}ftyp(?!avi[fs]|he[iv]|mif1|msf1|crx )", ("mp4", "mov", "m4a")),
    (rb".{4}(?:moov|mdat|wide)", ("mov",)),
    (rb"\x1a\x45\xdf\xa3", ("webm", "mkv")),
    (rb"RIFF.{4}WAVE", ("wav",)),
    (rb"fLaC", ("flac",)),
    (rb"OggS", ("ogg", "opus")),
    (rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", ("mp3",)),
)
"""The suffixes of the files whose first bytes match a regular expression."""
_SIGNATURES = tuple((re.compile(start, re.DOTALL), suffixes) for start, suffixes in _FORMATS)
MEDIA_SUFFIXES = tuple(
    dict.fromkeys(
        suffix for _, suffixes in _FORMATS if suffixes != IMAGE_SUFFIXES for suffix in suffixes
    )
)
"""The suffixes of video and audio files."""


def suffixes_of(data: bytes) -> tuple[str, ...]:
    """Return the suffixes that the name of a file may have, the most common one first.

    The result is empty for an unknown format.
    """
    found = (suffixes for signature, suffixes in _SIGNATURES if signature.match(data))
    return next(found, ())


def suffix_in(name: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the suffix of a name in lower case, or None if it is not one of `suffixes`."""
    suffix = name.rpartition(".")[2].lower()
    return suffix if "." in name and suffix in suffixes else None
