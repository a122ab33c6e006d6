"""Reads the header of a safetensors file: the names, shapes and types of its tensors.

The header is read without torch, so that any process can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from sys import intern

from safetensors import SafetensorError, safe_open

from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import require_file

_SHOWN_CHARS = 300
_CACHED_HEADERS = 8
"""The number of headers in the cache. The header of an SDXL checkpoint takes about a megabyte."""
_MOST_HEADER_BYTES = 2**24
_MOST_TENSORS = 2**16
"""The largest header that is read takes a second and 50 MB. Models have some thousand tensors."""


@dataclass(frozen=True)
class Header:
    name: str
    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    """The data type of each tensor by its name, such as `F16`."""

    def has(self, prefix: str) -> bool:
        return any(key.startswith(prefix) for key in self.shapes)


def read_header(path: Path) -> Header:
    """Return the header. Raises CheckpointUnavailable if the file is missing or damaged."""
    try:
        state = require_file(path)
        return _read(path, state.st_size, state.st_mtime_ns)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointUnavailable(f"{path.name} cannot be read: {reason}") from error
    except SafetensorError as error:
        # The error is cut off, because it may quote long parts of the file.
        reason = str(error)[:_SHOWN_CHARS]
        raise CheckpointUnavailable(
            f"{path.name} is not a safetensors file, or is damaged or incomplete: {reason}"
        ) from error


@lru_cache(maxsize=_CACHED_HEADERS)
def _read(path: Path, size_bytes: int, _changed_ns: int) -> Header:
    with path.open("rb") as start:
        header_bytes = int.from_bytes(start.read(8), "little")
    if _MOST_HEADER_BYTES < header_bytes <= size_bytes:
        raise CheckpointUnavailable(
            f"{path.name} has a header of more than {_MOST_HEADER_BYTES} bytes"
        )
    with safe_open(path, framework="np") as file:
        if len(file.keys()) > _MOST_TENSORS:
            raise CheckpointUnavailable(f"{path.name} has more than {_MOST_TENSORS} tensors")
        slices = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
        shapes = {key: tuple(each.get_shape()) for key, each in slices.items()}
        types = {key: intern(each.get_dtype()) for key, each in slices.items()}
        metadata = file.metadata() or {}
    return Header(path.name, shapes, metadata, types)
