"""What a workflow's caller sends along for its images: the text chunks of their PNG files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from engine.errors import SHOWN_FIELDS, FieldError, GraphInvalid, ParametersInvalid, encodable

_MAX_KEYWORD_CHARS = 79
_FIELD = "extra_data.extra_pnginfo"


def pnginfo_of(extra_data: object) -> dict[str, Any]:
    """The member `extra_pnginfo`, empty if there is none: values of JSON by their PNG keywords.

    Raises ParametersInvalid if it is no object, or a name in it is no keyword of a text chunk.
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


def require_size(pnginfo: Mapping[str, Any], max_bytes: int) -> None:
    """Raises ParametersInvalid if it has more than `max_bytes` as compact JSON in UTF-8."""
    written = json.dumps(pnginfo, ensure_ascii=False, separators=(",", ":"))
    size = len(written.encode())
    if size > max_bytes:
        message = f"has {size} bytes as JSON, at most {max_bytes} are taken"
        raise ParametersInvalid((FieldError("too_long", message, _FIELD),))


def require_metadata_size(texts: Iterable[object], *, images: int, max_bytes: int) -> None:
    """Raises GraphInvalid if so many images have more than `max_bytes` of these texts together.

    Each image has all of them, as JSON in ASCII.
    """
    size = images * sum(len(json.dumps(text)) for text in texts)
    if size > max_bytes:
        details = (
            f"{images} images have {size} bytes of it, at most {max_bytes} are taken: shorten the "
            "texts of the prompt, or save fewer images"
        )
        raise GraphInvalid("too_much_metadata", "The images say too much of themselves", details)


def _is_keyword(name: Any) -> bool:
    """Whether it is the keyword of a PNG text chunk; that of an iTXt chunk is Latin-1 as well.

    https://www.w3.org/TR/png-3/#11keywords: 1 to 79 printable characters of Latin-1, with single
    spaces between them.
    """
    return (
        isinstance(name, str)
        and 1 <= len(name) <= _MAX_KEYWORD_CHARS
        and all(" " <= letter <= "~" or "\xa1" <= letter <= "\xff" for letter in name)
        and name == name.strip(" ")
        and "  " not in name
    )


def _wrong_keyword(name: Any) -> FieldError:
    message = "must have 1 to 79 printable characters of Latin-1, for a PNG file names its texts so"
    return FieldError("invalid_keyword", message, f"{_FIELD}.{encodable(str(name)[:100])}")
