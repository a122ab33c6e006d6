"""The names of uploads: labels, which never become a path."""

from __future__ import annotations

import hashlib
import re
import unicodedata

from serve_app.refusals import InvalidUploadName

_CONTENT_DIGITS = 40
_CONTENT_NAME = re.compile(rf"sent-[0-9a-f]{{{_CONTENT_DIGITS}}}\.png")
_SEPARATORS = re.compile(r"[/\\]")
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Characters that change the direction of a text: they make a name look like another one."""


def upload_name(file_name: str, *, max_chars: int) -> str:
    """The last part of a file name, normalized (NFC). Raises InvalidUploadName."""
    name = unicodedata.normalize("NFC", _SEPARATORS.split(file_name)[-1]).strip()
    if name in {"", ".", ".."}:
        raise InvalidUploadName("The file has no name.")
    if len(name) > max_chars:
        raise InvalidUploadName(f"The file's name is longer than {max_chars} characters.")
    if any(_is_misleading(char) for char in name):
        raise InvalidUploadName("The file's name has control characters.")
    if _CONTENT_NAME.fullmatch(name):
        raise InvalidUploadName(
            "The file's name is one of those that sent images get of their bytes."
        )
    return name


def content_name(data: bytes) -> str:
    """The name of an image that was sent without one. No file that has a name gets it."""
    return f"sent-{hashlib.sha256(data).hexdigest()[:_CONTENT_DIGITS]}.png"


def _is_misleading(char: str) -> bool:
    return unicodedata.category(char) in _CONTROL or unicodedata.bidirectional(char) in _DIRECTIONS
