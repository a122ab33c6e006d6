"""Makes small videos and sounds."""

from __future__ import annotations

import io

import av
import numpy as np


def video(
    container: str = "mp4",
    codec: str = "libx264",
    *,
    size: tuple[int, int] = (64, 48),
    seconds: int = 2,
) -> bytes:
    """Return a video of four frames per second. The first frame is red, and the others are blue."""
    width, height = size
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=4)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(4 * seconds):
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[..., 2 if number else 0] = 255
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        output.mux(stream.encode())
    return file.getvalue()


def sound(container: str = "wav", codec: str = "pcm_s16le", *, seconds: int = 2) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=48_000)
        stream.layout = "mono"
        resampler = av.AudioResampler(stream.format.name, "mono", 48_000, stream.frame_size or None)
        silence = np.zeros((1, 48_000 * seconds), np.int16)
        frame = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
        frame.sample_rate = 48_000
        for part in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(part))
        output.mux(stream.encode())
    return file.getvalue()
