"""Hashes of model files, by which the WebUI's texts and its sites know them."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.graph.models_folder import CHECKPOINTS, EMBEDDINGS, LORAS, ModelsFolder
from engine.graph.safetensors_header import read_header
from engine.webui.model_names import named_embeddings

_HASH = re.compile(r"(?:.* )?\[?([0-9a-fA-F]{10}|[0-9a-fA-F]{64})\]?", re.DOTALL)
_WHOLE_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_LONGEST_WAIT_S = 2.0
_LENGTH_BYTES = 8
_REMEMBERED = 4096
_WRITTEN_HASH = "sshs_model_hash"


def named_by_hash(models: ModelsFolder, asked: str) -> str | None:
    """The listed checkpoint whose SHA-256 begins with the hash that was `asked` for, alone or as
    "name [hash]"; None where that is no hash or none has it.

    Raises ModelsUnavailable while files are still being read for it.
    """
    found = _HASH.fullmatch(asked)
    if found is None:
        return None
    prefix = found[1].lower()
    hashes = _hashes(models, models.paths(CHECKPOINTS), _file_hash)
    return next((name for name, each in hashes if each.startswith(prefix)), None)


@dataclass(frozen=True, slots=True)
class NetworkHashes:
    """Those of the LoRAs and of the embeddings of a request, by their names."""

    loras: Mapping[str, str]
    embeddings: Mapping[str, str]


NO_HASHES = NetworkHashes({}, {})


def network_hashes(
    models: ModelsFolder, loras: Collection[str], texts: Collection[str]
) -> NetworkHashes:
    """Those of LoRAs, which are of the tensors alone, and of the embeddings that texts name.

    Those are left out that cannot be read in time: they are worth no wait.
    """
    named = named_embeddings(texts, models.paths(EMBEDDINGS))
    used = {name: path for name, path in models.paths(LORAS).items() if name in loras}
    return NetworkHashes(
        dict(_known(models, used, _tensors_hash)), dict(_known(models, named, _file_hash))
    )


def _known(
    models: ModelsFolder, paths: Mapping[str, Path], read: Callable[[Path], str]
) -> Iterator[tuple[str, str]]:
    """The hashes that are known in time, by name."""
    with suppress(ModelsUnavailable):
        for name, found in _hashes(models, paths, read):
            if found:
                yield PurePosixPath(name).stem, found[:_SHOWN]


def _hashes(
    models: ModelsFolder, paths: Mapping[str, Path], read: Callable[[Path], str]
) -> Iterator[tuple[str, str]]:
    """Raises ModelsUnavailable where that takes longer than anybody should wait."""
    ends_at = time.monotonic() + _LONGEST_WAIT_S
    for name, path in paths.items():
        if time.monotonic() > ends_at:
            raise ModelsUnavailable("Hashes of models are still being read. Try again.")
        with suppress(CheckpointUnavailable, FileNotFoundError):
            yield name, models.hashes.read(path, partial(read, path))


def _file_hash(path: Path) -> str:
    """The SHA-256 of a file; empty for a folder, or for a file that is closed to us."""
    try:
        state = path.stat()
        return _read_file_hash(path, state.st_size, state.st_mtime_ns)
    except (IsADirectoryError, PermissionError):
        return ""


@lru_cache(maxsize=_REMEMBERED)
def _read_file_hash(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensors_hash(lora: Path) -> str:
    """That which the trainer wrote, or the SHA-256 of what follows the header."""
    written = read_header(lora).metadata.get(_WRITTEN_HASH, "").lower()
    if _WHOLE_HASH.fullmatch(written):
        return written
    state = lora.stat()
    return _read_tensors_hash(lora, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=_REMEMBERED)
def _read_tensors_hash(lora: Path, _size_bytes: int, _changed_ns: int) -> str:
    with lora.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        file.seek(_LENGTH_BYTES + header_bytes)
        return hashlib.file_digest(file, "sha256").hexdigest()
