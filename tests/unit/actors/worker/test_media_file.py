"""The properties that `read_media` finds in videos and sounds, and in broken or false files."""

from __future__ import annotations

import asyncio
import io
import os
import struct
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from actors.worker import media_file, media_reader
from actors.worker.media_file import Media, read_media
from tests.support.media import sound, video
from tests.support.polling import eventually

PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"


@pytest.mark.parametrize(
    ("container", "codec", "media_type"),
    [
        ("mp4", "libx264", "video/mp4"),
        ("mov", "mpeg4", "video/quicktime"),
        ("webm", "libvpx-vp9", "video/webm"),
        ("matroska", "ffv1", "video/x-matroska"),
    ],
)
async def test_a_video_has_a_duration_a_size_and_its_first_frame_as_poster(
    container: str, codec: str, media_type: str
) -> None:
    media = await read_media(video(container, codec), media_type)
    assert media.duration_s == pytest.approx(2, abs=0.3)
    assert (media.width, media.height) == (64, 48)
    assert media.poster is not None
    with Image.open(io.BytesIO(media.poster)) as poster:
        assert (poster.format, poster.size) == ("JPEG", (64, 48))
        red, green, blue = np.asarray(poster).reshape(-1, 3).mean(axis=0)
    assert red > 200
    assert max(green, blue) < 60


async def test_a_poster_is_small() -> None:
    media = await read_media(video(size=(1280, 320)), "video/mp4")
    assert (media.width, media.height) == (1280, 320)
    assert media.poster is not None
    assert Image.open(io.BytesIO(media.poster)).size == (512, 128)


@pytest.mark.parametrize(
    ("container", "codec", "media_type"),
    [
        ("wav", "pcm_s16le", "audio/wav"),
        ("flac", "flac", "audio/flac"),
        ("mp3", "libmp3lame", "audio/mpeg"),
        ("ogg", "libopus", "audio/ogg"),
        ("mp4", "aac", "audio/mp4"),
    ],
)
async def test_a_sound_has_a_duration_only(container: str, codec: str, media_type: str) -> None:
    media = await read_media(sound(container, codec), media_type)
    assert media.duration_s == pytest.approx(2, abs=0.1)
    assert media == Media(media.duration_s)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (b"", "video/mp4"),
        (b"no video" * 100, "video/webm"),
        (video()[:-200], "video/mp4"),
        (video(), "audio/flac"),
        (PLAYLIST, "video/mp4"),
        (video(), "application/octet-stream"),
        (video(), None),
    ],
)
async def test_nothing_is_known_of_a_broken_file_or_one_of_another_kind(
    content: bytes, media_type: str | None
) -> None:
    assert await read_media(content, media_type) == Media()


async def test_a_damaged_frame_gives_no_poster_but_a_duration() -> None:
    whole = video("matroska", "ffv1")
    media = await read_media(whole[:600] + bytes(len(whole) - 600), "video/x-matroska")
    assert media.poster is None
    assert media.width == 64


def test_a_frame_with_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media_reader, "_STREAM_OPTIONS", {"max_pixels": "1000"})
    properties, poster = media_reader.read(io.BytesIO(video()), "mp4", has_poster=True)
    assert (properties["duration_s"], poster) == (2, b"")


def test_a_large_first_frame_is_not_decoded_when_the_file_is_opened() -> None:
    """FFmpeg decodes a PNG while it opens the file, because only the PNG tells its true size."""
    content = with_png((6000, 6000))
    properties, poster = media_reader.read(io.BytesIO(content), "mp4", has_poster=True)
    assert (properties["width"], poster) == (0, b"")


async def test_a_decoder_that_is_not_listed_is_not_used() -> None:
    media = await read_media(video("mov", "mpeg2video"), "video/quicktime")
    assert (media.duration_s, media.poster) == (2, None)


def test_a_first_frame_that_does_not_come_soon_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media_reader, "_MOST_PACKETS", 0)
    read = media_reader.read(io.BytesIO(video()), "mp4", has_poster=True)
    assert read == ({"duration_s": 2, "width": 64, "height": 48}, b"")


def test_a_small_file_cannot_use_much_memory(tmp_path: Path) -> None:
    """FFmpeg makes an index of all samples that the file claims to have."""
    (tmp_path / "video").write_bytes(with_samples(video(codec="mpeg4"), 24_000_000))
    program = f"""
import runpy, sys
sys.argv[1:] = ["mp4", "video"]
runpy.run_path({str(media_file._PROGRAM)!r}, run_name="__main__")
print([line for line in open("/proc/self/status") if line.startswith("VmHWM:")][0])
"""
    with (tmp_path / "video").open("rb") as file:
        output = subprocess.check_output([sys.executable, "-c", program], stdin=file)
    assert int(output.split()[-2]) < 1.5 * 2**20  # kB


@pytest.mark.parametrize(
    "program",
    [
        "print('x' * 2**21)",
        "print('no JSON')",
        """print('{"width": -1}')""",
        """print('{"duration_s": NaN}')""",
        "import os; os.abort()",
    ],
)
async def test_nothing_is_taken_from_a_reader_that_fails(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_file, "_PROGRAM", program_of(tmp_path, program))
    assert await read_media(video(), "video/mp4") == Media()


async def test_the_reader_is_killed_when_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    program = f"""
import os, time
with open({str(pid_file)!r} + "-new", "w") as file:
    file.write(str(os.getpid()))
os.rename({str(pid_file)!r} + "-new", {str(pid_file)!r})
time.sleep(1000)
"""
    monkeypatch.setattr(media_file, "_PROGRAM", program_of(tmp_path, program))
    monkeypatch.setattr(media_file, "_MEDIA_READ_S", 1000)
    reading = asyncio.create_task(read_media(video(), "video/mp4"))
    await eventually(pid_file.exists)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def program_of(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


def with_png(size: tuple[int, int]) -> bytes:
    """Return an MP4 with a PNG of this size as its only frame."""
    file, picture = io.BytesIO(), io.BytesIO()
    Image.new("RGB", size).save(picture, "PNG")
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("png", rate=4)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "rgb24"
        packet = av.Packet(picture.getvalue())
        packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 4), 0, 0
        output.mux(packet)
    return file.getvalue()


def with_samples(content: bytes, count: int) -> bytes:
    """Return an MP4 that claims to have `count` samples of one byte in its first chunk."""
    changed = bytearray(content)
    for box, form, values in (
        (b"stsz", ">II", (1, count)),
        (b"stts", ">III", (1, count, 1)),
        (b"stsc", ">IIII", (1, 1, count, 1)),
    ):
        struct.pack_into(form, changed, changed.index(box) + 8, *values)
    return bytes(changed)
