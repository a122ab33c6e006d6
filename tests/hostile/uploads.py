"""Hostile uploads: files that unpack to more than they show, and endless forms."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image

from tests.hostile.attack import Attack

_BOUNDARY = "hostile"
_FORM = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}


def _part(content: bytes, name: str = "image", file_name: str = "a.png") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"; filename="{file_name}"'
    return f"--{_BOUNDARY}\r\n{head}\r\n\r\n".encode() + content + b"\r\n"


def _upload(name: str, *parts: bytes) -> Attack:
    content = b"".join(parts) + f"--{_BOUNDARY}--\r\n".encode()
    return Attack(name, "/v1/uploads", content, headers=_FORM)


def _chunk(kind: bytes, content: bytes) -> bytes:
    crc = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc)


def _png(width: int, height: int, data: bytes, *extra: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (_chunk(b"IHDR", head), *extra, _chunk(b"IDAT", data), _chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _blank(kind: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, kind)
    return file.getvalue()


_ZEROS = zlib.compress(b"\0" * 64 * 1024**2)
_TEXT = _chunk(b"zTXt", b"Comment\0\0" + _ZEROS)
_LATENT_HEADER = struct.pack("<Q", 2**62) + b"{}"

ATTACKS: tuple[Attack, ...] = (
    _upload("a PNG of 60,000 squared", _part(_png(60_000, 60_000, _ZEROS))),
    _upload("a PNG that unpacks to more than it says", _part(_png(16, 16, _ZEROS))),
    _upload("a PNG whose text unpacks to 64 MiB", _part(_png(16, 16, _ZEROS, *[_TEXT] * 20))),
    _upload("a GIF", _part(_blank("GIF"))),
    _upload("a TIFF", _part(_blank("TIFF"))),
    _upload("an SVG", _part(b'<svg xmlns="http://www.w3.org/2000/svg"/>')),
    _upload("20 MiB of zeros", _part(b"\0" * 20 * 1024**2)),
    _upload("22 MiB of zeros", _part(b"\0" * 22 * 1024**2)),
    _upload("a latent with a header of 2**62", _part(_LATENT_HEADER, file_name="a.latent")),
    _upload("a name outside the folder", _part(_blank("PNG"), file_name="../../../etc/passwd")),
    _upload("a name of 60 kB", _part(_blank("PNG"), file_name="x" * 60_000)),
    Attack(
        "names in punycode",
        "/v1/uploads",
        _part(b"", name="x" * 60_000 + "-" + "9" * 60_000) + f"--{_BOUNDARY}--\r\n".encode(),
        headers={"content-type": f"{_FORM['content-type']}; charset=punycode"},
    ),
    _upload("10,000 parts", *[_part(b"", name=f"f{number}") for number in range(500)]),
    Attack("a form without an end", "/v1/uploads", _part(b"x" * 1000), headers=_FORM),
    Attack(
        "a boundary of 60 kB",
        "/v1/uploads",
        b"--" + b"b" * 60_000,
        headers={"content-type": "multipart/form-data; boundary=" + "b" * 6_000},
    ),
)
