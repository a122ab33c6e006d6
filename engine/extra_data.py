"""The extra data of a workflow request, which becomes text chunks of its PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import SHOWN_FIELDS, FieldError, ParametersInvalid, encodable

_MAX_KEYWORD_CHARS = 79
_FIELD = "extra_data.extra_pnginfo"


def pnginfo_of(extra_data: object) -> dict[str, Any]:
    """Return the JSON values of the member `extra_pnginfo` by PNG keyword. The default is empty.

    Raises ParametersInvalid if a value is not an object, or if a name is not a PNG keyword.
    """
    if extra_data is None:
        return {}
    if not isinstance(extra_data, Mapping):
        raise ParametersInvalid((FieldError("dict_type", "must be an object", "extra_data"),))
    pnginfo = extra_data.get("extra_pnginfo")
    if pnginfo is None:
        return {}
    if not isinstance(pnginfo, Mapping):
        raise ParametersInvalid((FieldError("dict_type", "must be an object", _FIELD),))
    wrong = [name for name in pnginfo if not _is_keyword(name)]
    if wrong:
        shown = tuple(_wrong_keyword(name) for name in wrong[:SHOWN_FIELDS])
        raise ParametersInvalid(shown, len(wrong))
    return dict(pnginfo)


def _is_keyword(name: Any) -> bool:
    """Whether `name` is a keyword of a PNG text chunk: https://www.w3.org/TR/png-3/#11keywords.

    Spaces are allowed only one by one, and not at the ends. iTXt chunks have the same keywords.
    """
    return (
        isinstance(name, str)
        and 1 <= len(name) <= _MAX_KEYWORD_CHARS
        and all(" " <= letter <= "~" or "\xa1" <= letter <= "\xff" for letter in name)
        and name == name.strip(" ")
        and "  " not in name
    )


def _wrong_keyword(name: Any) -> FieldError:
    message = (
        "must have 1 to 79 printable characters of Latin-1, because a PNG file uses them as "
        "keywords of its texts"
    )
    return FieldError("invalid_keyword", message, f"{_FIELD}.{encodable(str(name)[:100])}")
