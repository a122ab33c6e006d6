"""The header of a safetensors file: names, shapes and places of its tensors, without the tensors.

Format: 8 bytes little-endian length, that many bytes of JSON, then the data
(https://github.com/huggingface/safetensors, "Format"). Read without torch, so that anything may.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from engine.errors import CheckpointUnavailable

_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_CACHED_HEADERS = 256


@dataclass(frozen=True)
class Header:
    """What a file says about itself."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, str]

    @cached_property
    def first_parts(self) -> frozenset[str]:
        """Every name up to its first dot, with the dot."""
        return frozenset(f"{key.partition('.')[0]}." for key in self.shapes)

    def has(self, prefix: str) -> bool:
        """Some tensor's name begins so."""
        return any(key.startswith(prefix) for key in self.shapes)


def read_header(path: Path) -> Header:
    """The header; raises CheckpointUnavailable where the file is gone, damaged or cut short."""
    try:
        state = path.stat()
        return _read(path, state.st_size, state.st_mtime_ns)
    except FileNotFoundError as error:
        raise CheckpointUnavailable(f"{path.name} is gone") from error
    except OSError as error:
        raise CheckpointUnavailable(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise CheckpointUnavailable(
            f"{path.name} is damaged or no safetensors file: {error}"
        ) from error


@lru_cache(maxsize=_CACHED_HEADERS)
def _read(path: Path, size_bytes: int, _changed_ns: int) -> Header:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(_LENGTH_BYTES))
        if length > min(_MOST_HEADER_BYTES, size_bytes):
            raise ValueError("its header is longer than the file")
        entries: dict[str, Any] = json.loads(file.read(length))
    metadata = entries.pop("__metadata__", {})
    data_bytes = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    missing = _LENGTH_BYTES + length + data_bytes - size_bytes
    if missing > 0:
        raise ValueError(f"{missing} bytes are missing at its end; copy it again")
    shapes = {key: tuple(entry["shape"]) for key, entry in entries.items()}
    return Header(path.name, shapes, metadata)
