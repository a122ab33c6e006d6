"""The formats of uploads are recognised by their first bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.file_signatures import IMAGE_SUFFIXES, MEDIA_SUFFIXES, suffix_in, suffixes_of
from storage.file_names import kind_of, media_type_of
from tests.support.uploads import FLAC, MKV, MOV, MP3, MP4, OGG, WAV, png


@pytest.mark.parametrize(
    ("data", "suffixes"),
    [
        (png(), IMAGE_SUFFIXES),
        (b"\xff\xd8\xff\xe0\x00\x10JFIF", IMAGE_SUFFIXES),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", IMAGE_SUFFIXES),
        (MP4, ("mp4", "mov", "m4a")),
        (b"\x00\x00\x00\x20ftypM4A \x00\x00\x02\x00", ("mp4", "mov", "m4a")),
        (MOV, ("mov",)),
        (MKV, ("webm", "mkv")),
        (WAV, ("wav",)),
        (FLAC, ("flac",)),
        (OGG, ("ogg", "opus")),
        (MP3, ("mp3",)),
        (b"ID3\x04\x00\x00\x00\x00\x00\x00", ("mp3",)),
    ],
)
def test_a_format_is_recognised(data: bytes, suffixes: tuple[str, ...]) -> None:
    assert suffixes_of(data) == suffixes


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html><script>alert(1)</script>",
        b"RIFF\x10\x00\x00\x00AVI LIST",
        b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00",
        b"\x00\x00\x00\x20ftypheic\x00\x00\x00\x00",
        b"\xff\xfe<\x00h\x00t\x00m\x00l\x00",
        b" " + MP4,
    ],
)
def test_another_format_is_unknown(data: bytes) -> None:
    assert suffixes_of(data) == ()


@given(st.binary(max_size=40))
def test_no_bytes_are_an_error(data: bytes) -> None:
    assert set(suffixes_of(data)) <= {*IMAGE_SUFFIXES, *MEDIA_SUFFIXES}


def test_each_suffix_has_a_media_type() -> None:
    assert {kind_of(media_type_of(f"a.{each}")) for each in MEDIA_SUFFIXES} == {"video", "audio"}


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.MP4", "mp4"), ("a.mov", "mov"), ("a.webm", None), ("mp4", None)]
)
def test_the_suffix_of_a_name_is_one_of_its_format(name: str, suffix: str | None) -> None:
    assert suffix_in(name, ("mp4", "mov")) == suffix
