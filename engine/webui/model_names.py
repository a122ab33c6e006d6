"""Finds models by the names and the hashes that the WebUI's clients use."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.graph.models_folder import (
    CHECKPOINTS,
    EMBEDDINGS,
    LORAS,
    UPSCALE_MODELS,
    ModelsFolder,
    require_file,
)
from engine.graph.safetensors_header import read_header

_SHOWN_NAMES = 20
_OUTPUT_NAME = "ss_output_name"
_REMEMBERED = 4096
_SUFFIXES = (".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin")


@dataclass(frozen=True, slots=True)
class ServerModels:
    """The names of the models of a ComfyUI server, by their folders.

    If a folder is not in `listed`, its models are not known, and every name is taken.
    """

    listed: Mapping[str, tuple[str, ...]]

    def names(self, kind: str) -> tuple[str, ...]:
        return self.listed.get(kind, ())

    def name(self, kind: str, asked: str) -> str:
        """Return the name of a model for a spelling of the WebUI.

        A name that cannot be looked up gets the usual suffix if it has none. Raises ValueError for
        an unknown name.
        """
        if (names := self.listed.get(kind)) is not None:
            return _listed_of(kind, asked, names)
        plain = asked if kind == LORAS else _without_hash(asked)
        suffix = ".pth" if kind == UPSCALE_MODELS else ".safetensors"
        return plain if plain.endswith(_SUFFIXES) else plain + suffix


Models: TypeAlias = ModelsFolder | ServerModels


def model_name(models: Models, kind: str, asked: str) -> str:
    """Return the name of a model for a spelling of the WebUI. Raises ValueError for an unknown
    name.
    """
    if isinstance(models, ServerModels):
        return models.name(kind, asked)
    return _listed_of(kind, asked, models.names(kind))


def _listed_of(kind: str, asked: str, names: Sequence[str]) -> str:
    if kind != LORAS:
        return listed_name(asked, names)
    if (name := _named(asked, names)) is None:
        raise _not_known(names)
    return name


def listed_name(requested: str, names: Sequence[str]) -> str:
    """Return the listed name of a model. Raises ValueError with the known names.

    `requested` may omit the folder and the extension, and may end with the WebUI's " [hash]".
    """
    name = _named(requested, names) or _named(_without_hash(requested), names)
    if name is None:
        raise _not_known(names)
    return name


def _named(requested: str, names: Sequence[str]) -> str | None:
    """Return the listed name of a model, whose folder and extension may be omitted."""
    for name in (requested, f"{requested}.safetensors"):
        if name in names:
            return name
    for name in names:
        file = PureWindowsPath(name).name  # A server may run on Windows.
        if requested == file or (file.endswith(_SUFFIXES) and requested == file.rpartition(".")[0]):
            return name
    return None


def _not_known(names: Sequence[str]) -> ValueError:
    shown = ", ".join(names[:_SHOWN_NAMES]) + (" …" if names[_SHOWN_NAMES:] else "")
    return ValueError(f"is not known; there are{f': {shown}' if shown else ' none'}")


def _without_hash(requested: str) -> str:
    has_hash = requested.endswith("]") and " [" in requested
    return requested.rpartition(" [")[0] if has_hash else requested


def named_embeddings(texts: Iterable[str], embeddings: Mapping[str, Path]) -> dict[str, Path]:
    """Return the embeddings that the texts contain as words, in any case, by their listed names."""
    text = "\n".join(texts).casefold()
    words = {name: path.stem.casefold() for name, path in embeddings.items()}
    return {
        name: embeddings[name]
        for name, word in words.items()
        if word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    }


def lora_of_file(models: Models, asked: str) -> str:
    """Return the listed name of a LoRA for its file name. Raises ValueError for an unknown name."""
    return model_name(models, LORAS, asked)


def lora_of_any_name(models: ModelsFolder, asked: str) -> str:
    """Return the listed name of a LoRA for the name of its file or for its name from training.

    Raises ValueError for an unknown name.
    """
    try:
        return lora_of_file(models, asked)
    except ValueError:
        read = partial(_by_output_name, models.paths(LORAS))
        # `models.reads` would make lists of models wait until many files are read.
        if asked and (found := models.hashes.read(_OUTPUT_NAME, read).get(asked)):
            return found
        raise


def _by_output_name(loras: Mapping[str, Path]) -> dict[str, str]:
    """Return the LoRAs by their names from training. Of equal names, the first LoRA counts."""
    return {_output_name(path): name for name, path in reversed([*loras.items()])}


def _output_name(lora: Path) -> str:
    """Return the name of a LoRA from its training; empty if the file has no such name."""
    try:
        state = lora.stat()
        return _read_output_name(lora, state.st_size, state.st_mtime_ns)
    except (OSError, CheckpointUnavailable):
        return ""


@lru_cache(maxsize=_REMEMBERED)
def _read_output_name(lora: Path, _size_bytes: int, _changed_ns: int) -> str:
    return read_header(lora).metadata.get(_OUTPUT_NAME, "")


_HASH = re.compile(r"(?:.* )?\[?([0-9a-fA-F]{10}|[0-9a-fA-F]{64})\]?", re.DOTALL)
_WHOLE_HASH = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_LONGEST_WAIT_S = 2.0
_LENGTH_BYTES = 8
_WRITTEN_HASH = "sshs_model_hash"


def named_by_hash(models: ModelsFolder, asked: str) -> str | None:
    """Return the listed checkpoint whose SHA-256 begins with the hash in `asked`.

    `asked` is a hash or "name [hash]". Returns None if `asked` has no hash, or if no checkpoint has
    this hash. Raises ModelsUnavailable while the hashes of the files are still being computed.
    """
    found = _HASH.fullmatch(asked)
    if found is None:
        return None
    prefix = found[1].lower()
    hashes = _hashes(models, models.paths(CHECKPOINTS), _file_hash)
    return next((name for name, each in hashes if each.startswith(prefix)), None)


@dataclass(frozen=True, slots=True)
class NetworkHashes:
    """The hashes of the LoRAs and of the embeddings of a request, by their names."""

    loras: Mapping[str, str]
    embeddings: Mapping[str, str]


NO_HASHES = NetworkHashes({}, {})


def network_hashes(
    models: ModelsFolder, loras: Collection[str], texts: Collection[str]
) -> NetworkHashes:
    """Return the hashes of LoRAs and of the embeddings that texts name.

    The hash of a LoRA covers only its tensors. Hashes that are not read within `_LONGEST_WAIT_S`
    are left out.
    """
    named = named_embeddings(texts, models.paths(EMBEDDINGS))
    used = {name: path for name, path in models.paths(LORAS).items() if name in loras}
    return NetworkHashes(
        dict(_readable_hashes(models, used, _tensors_hash)),
        dict(_readable_hashes(models, named, _file_hash)),
    )


def _readable_hashes(
    models: ModelsFolder, paths: Mapping[str, Path], read: Callable[[Path], str]
) -> Iterator[tuple[str, str]]:
    with suppress(ModelsUnavailable):
        for name, found in _hashes(models, paths, read):
            if found:
                yield PurePosixPath(name).stem, found[:_SHOWN]


def _hashes(
    models: ModelsFolder, paths: Mapping[str, Path], read: Callable[[Path], str]
) -> Iterator[tuple[str, str]]:
    """Yield names and hashes of models. Raises ModelsUnavailable after `_LONGEST_WAIT_S`."""
    ends_at = time.monotonic() + _LONGEST_WAIT_S
    for name, path in paths.items():
        if time.monotonic() > ends_at:
            raise ModelsUnavailable("Hashes of models are still being read. Try again.")
        with suppress(CheckpointUnavailable, FileNotFoundError):
            yield name, models.hashes.read(path, partial(read, path))


def _file_hash(path: Path) -> str:
    """Return the SHA-256 of a file; empty without permission to read it.

    Raises CheckpointUnavailable for a folder.
    """
    state = require_file(path)
    try:
        return _read_file_hash(path, state.st_size, state.st_mtime_ns)
    except PermissionError:
        return ""


@lru_cache(maxsize=_REMEMBERED)
def _read_file_hash(path: Path, _size_bytes: int, _changed_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensors_hash(lora: Path) -> str:
    """Return the hash in the metadata of a LoRA, or the SHA-256 of the bytes after the header."""
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
