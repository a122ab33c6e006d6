"""The header of a safetensors file: names and shapes of its tensors, without the tensors.

Read without torch, so that anything may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from engine.errors import CheckpointUnavailable

_CACHED_HEADERS = 8
"""Of the models in use; that of an SDXL checkpoint takes about a megabyte."""


@dataclass(frozen=True)
class Header:
    """What a file says about itself."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]

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
        reason = error.strerror or str(error)
        raise CheckpointUnavailable(f"{path.name} cannot be read: {reason}") from error
    except SafetensorError as error:
        raise CheckpointUnavailable(
            f"{path.name} is no safetensors file, or is damaged or cut short: {error}"
        ) from error


@lru_cache(maxsize=_CACHED_HEADERS)
def _read(path: Path, _size_bytes: int, _changed_ns: int) -> Header:
    with safe_open(path, framework="np") as file:
        shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return Header(path.name, shapes)
