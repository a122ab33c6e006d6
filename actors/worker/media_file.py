"""Reads the duration and the first frame of video and audio files, which are not trusted.

FFmpeg runs in a process of its own, whose memory and time are limited.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from settings.constant import constant
from storage.file_names import kind_of

logger = logging.getLogger(__name__)

_FORMATS = {
    "video/mp4": "mp4",
    "video/quicktime": "mov",
    "video/webm": "matroska",
    "video/x-matroska": "matroska",
    "audio/mp4": "mp4",
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
}
"""The names of FFmpeg's demuxers. Without a name, a file could choose a demuxer that opens other
files, such as that of playlists.
"""
_PROGRAM = Path(__file__).with_name("media_reader.py")
_MEDIA_READ_S = constant("MEDIA_READ_S", 20.0)
"""Seconds after which a video or a sound is stored without a duration and a poster."""
_MOST_OUTPUT_BYTES = 2**20
"""More than the properties and any poster have."""


@dataclass(frozen=True, slots=True)
class Media:
    """The properties of a video or a sound, as far as they could be read."""

    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    width: Annotated[int, Field(ge=0, lt=2**31)] = 0
    height: Annotated[int, Field(ge=0, lt=2**31)] = 0
    poster: bytes | None = None
    """The first frame of a video as a JPEG."""


async def read_media(content: bytes, media_type: str | None) -> Media:
    """Read a file. Nothing is known of a file that is broken, exceeds a limit of memory or time, or
    has another media type.
    """
    name = _FORMATS.get(media_type or "")
    if name is None:
        return Media()
    try:
        async with asyncio.timeout(_MEDIA_READ_S):
            output = await _output(content, name, kind_of(media_type))
        properties, _, poster = output.partition(b"\n")
        media = TypeAdapter(Media).validate_json(properties)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError.
        fields = {"action": "read_media", "media_type": media_type}
        logger.warning("a file cannot be read as media", exc_info=error, extra=fields)
        return Media()
    return replace(media, poster=poster or None)


async def _output(content: bytes, *arguments: str) -> bytes:
    """Return what the program writes about a file. Raises OSError, ValueError."""
    with tempfile.TemporaryFile() as file:
        await asyncio.to_thread(file.write, content)
        await asyncio.to_thread(file.seek, 0)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # The folder of the program is no place for imports.
            _PROGRAM,
            *arguments,
            stdin=file,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            await process.stdout.readexactly(_MOST_OUTPUT_BYTES)
        except asyncio.IncompleteReadError as error:
            return error.partial
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    raise ValueError("the reader of media files wrote too much")
