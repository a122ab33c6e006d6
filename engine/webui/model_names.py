"""Finds models by the names that the WebUI's clients use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath

from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import LORAS, ModelsFolder
from engine.graph.safetensors_header import read_header

_SHOWN_NAMES = 20
_OUTPUT_NAME = "ss_output_name"
_REMEMBERED = 4096


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
    raise ValueError(f"is not known; there are{f': {shown}' if shown else ' none'}")


def named_embeddings(texts: Iterable[str], embeddings: Mapping[str, Path]) -> dict[str, Path]:
    """The embeddings that texts name as words, whatever case, by their listed names."""
    text = "\n".join(texts).casefold()
    words = {name: path.stem.casefold() for name, path in embeddings.items()}
    return {
        name: embeddings[name]
        for name, word in words.items()
        if word in text and re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    }


def lora_of_file(models: ModelsFolder, asked: str) -> str:
    """The listed name of a LoRA by that of its file. Raises ValueError, ModelsUnavailable."""
    return listed_name(asked, models.names(LORAS))


def lora_of_any_name(models: ModelsFolder, asked: str) -> str:
    """The listed name of a LoRA, by that of its file or by the one that its training gave it.

    Raises ValueError with the known names, ModelsUnavailable.
    """
    try:
        return lora_of_file(models, asked)
    except ValueError:
        read = partial(_by_output_name, models.paths(LORAS))
        # Not by `reads`: the lists of models do not stand in line behind many files.
        if asked and (found := models.hashes.read(_OUTPUT_NAME, read).get(asked)):
            return found
        raise


def _by_output_name(loras: Mapping[str, Path]) -> dict[str, str]:
    """The first LoRA of each name that a training gave."""
    return {_output_name(path): name for name, path in reversed([*loras.items()])}


def _output_name(lora: Path) -> str:
    """The name that its training gave it; empty where the file has or tells none."""
    try:
        state = lora.stat()
        return _read_output_name(lora, state.st_size, state.st_mtime_ns)
    except (OSError, CheckpointUnavailable):
        return ""


@lru_cache(maxsize=_REMEMBERED)
def _read_output_name(lora: Path, _size_bytes: int, _changed_ns: int) -> str:
    return read_header(lora).metadata.get(_OUTPUT_NAME, "")
