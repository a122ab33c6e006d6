"""What is stored of an upload."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SanitizedFile:
    """A file that was written anew. Sides in pixels; those of a latent are its image's."""

    data: bytes
    width: int
    height: int
