"""The names of uploads: labels, which never become a path."""

from __future__ import annotations

import re
import unicodedata

from serve_app.refusals import InvalidUploadName

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
    return name


def _is_misleading(char: str) -> bool:
    return unicodedata.category(char) in _CONTROL or unicodedata.bidirectional(char) in _DIRECTIONS
