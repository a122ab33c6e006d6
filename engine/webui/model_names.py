"""Finds models by the names that the WebUI's clients use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

_SHOWN_NAMES = 20


def listed_name(asked: str, known: Sequence[str]) -> str:
    """The listed name of a model. Folder, extension and the WebUI's " [hash]" may be left out.

    Raises ValueError with the known names.
    """
    plain = asked.rpartition(" [")[0] if asked.endswith("]") and " [" in asked else asked
    for name in (asked, plain, f"{plain}.safetensors"):
        if name in known:
            return name
    for name in known:
        path = PurePosixPath(name)
        if plain in (path.name, path.name.removesuffix(".safetensors")):
            return name
    shown = ", ".join(known[:_SHOWN_NAMES]) + (" …" if known[_SHOWN_NAMES:] else "")
    raise ValueError(f"is not known; there are: {shown or 'none'}")
