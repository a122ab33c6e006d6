"""The texts of a PNG, read as its bytes go by."""

from __future__ import annotations

import struct

_SIGNATURE_BYTES = 8
_HEAD_BYTES = 8
_CHECKSUM_BYTES = 4
_LONGEST_BYTES = 4 * 2**20
"""So much of a file is looked through; its texts come before its pixels."""


class PngTexts:
    """Takes a file in parts. Texts that are compressed are passed over: ours are not."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_over = False
        """Whether the pixels have begun, or too much has come before them."""
        self._held = bytearray()
        self._at = _SIGNATURE_BYTES

    def feed(self, part: bytes) -> None:
        if self.is_over:
            return
        self._held += part
        while len(self._held) >= self._at + _HEAD_BYTES and not self.is_over:
            length, kind = struct.unpack_from(">I4s", self._held, self._at)
            end = self._at + _HEAD_BYTES + length
            if kind == b"IDAT" or end > _LONGEST_BYTES:
                self._end()
            elif len(self._held) < end:
                return
            else:
                self._note(kind, bytes(self._held[self._at + _HEAD_BYTES : end]))
                self._at = end + _CHECKSUM_BYTES

    def _end(self) -> None:
        self.is_over = True
        self._held.clear()

    def _note(self, kind: bytes, data: bytes) -> None:
        name, _, rest = data.partition(b"\0")
        if kind == b"tEXt":
            self.found[name.decode("latin-1")] = rest.decode("latin-1")
        elif kind == b"iTXt" and rest[:1] == b"\0":
            text = rest[2:].split(b"\0", 2)[-1]
            self.found[name.decode("latin-1")] = text.decode("utf-8", "replace")
