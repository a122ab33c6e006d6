"""The program that reads the properties and the first frame of one video or sound.

Its input is the file, which is not trusted, so it first limits its own memory and processor time.
It imports little, because it starts for each file. It writes the properties as a line of JSON, and
then the first frame as a JPEG.
"""

from __future__ import annotations

import io
import json
import logging
import resource
import sys
from itertools import islice
from typing import IO, Any

import av
from av.container import InputContainer
from av.video.stream import VideoStream

logger = logging.getLogger(__name__)

_CODECS = {
    "av1",
    "ffv1",
    "h264",
    "hevc",
    "libdav1d",
    "mjpeg",
    "mpeg4",
    "png",
    "prores",
    "vp8",
    "vp9",
}
"""FFmpeg's decoders that may be used. It has many more, which hardly anybody tests."""
_MOST_MEMORY_BYTES = 2**30 + 2**28
"""The largest address space of this program. Python and FFmpeg need 130 MB without a file."""
_MOST_CPU_S = 20
_MOST_PIXELS = 2**25
"""The number of pixels of the largest frame that is decoded."""
_MOST_PACKETS = 100
"""The number of packets after which no first frame is expected any more."""
_MOST_STREAMS = 100
_POSTER_PX = 512
_POSTER_QUALITY = 80
_OPTIONS = {
    "codec_whitelist": ",".join(sorted(_CODECS)),
    "max_streams": str(_MOST_STREAMS),
    "protocol_whitelist": "none",
}
_STREAM_OPTIONS = {"max_pixels": str(_MOST_PIXELS)}


def main() -> None:
    """Read the file at the input. The arguments are the name of a demuxer, and the kind."""
    _limit(resource.RLIMIT_AS, _MOST_MEMORY_BYTES)
    _limit(resource.RLIMIT_CPU, _MOST_CPU_S)
    _limit(resource.RLIMIT_CORE, 0)
    name, kind = sys.argv[1:]
    properties, poster = read(sys.stdin.buffer, name, has_poster=kind == "video")
    sys.stdout.buffer.write(json.dumps(properties).encode() + b"\n" + poster)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def read(file: IO[bytes], name: str, *, has_poster: bool) -> tuple[dict[str, Any], bytes]:
    """Return the properties as far as they can be read, and the first frame or nothing."""
    properties: dict[str, Any] = {}
    try:
        with av.open(  # type: ignore[call-overload]  # av declares wrong `stream_options`
            file,
            "r",
            format=name,
            options=_OPTIONS,
            stream_options=[_STREAM_OPTIONS] * _MOST_STREAMS,
            metadata_errors="replace",
        ) as container:
            if container.duration is not None and container.duration >= 0:
                properties["duration_s"] = round(container.duration / av.time_base, 3)
            if has_poster and container.streams.video:
                stream = container.streams.video[0]
                properties |= {"width": stream.width, "height": stream.height}
                return properties, _poster(container, stream)
    except (av.FFmpegError, MemoryError, OSError, ValueError) as error:
        logger.warning("a file cannot be read as media: %r", error)
    return properties, b""


def _poster(container: InputContainer, stream: VideoStream) -> bytes:
    codec = stream.codec_context
    if codec.name not in _CODECS:
        return b""
    codec.thread_count = 1
    codec.options = _STREAM_OPTIONS
    packets = islice(container.demux(stream), _MOST_PACKETS)
    frame = next((frame for packet in packets for frame in packet.decode()), None)
    if frame is None:
        return b""
    scale = min(1.0, _POSTER_PX / max(frame.width, frame.height))
    width, height = (max(1, round(side * scale)) for side in (frame.width, frame.height))
    poster = io.BytesIO()
    small = frame.to_image(  # type: ignore[no-untyped-call]  # av does not declare its types
        width=width, height=height, interpolation="AREA"
    )
    small.save(poster, "JPEG", quality=_POSTER_QUALITY)
    return poster.getvalue()


if __name__ == "__main__":
    main()
