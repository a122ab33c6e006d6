"""Textual inversion embeddings from the folder `embeddings/`.

Gal et al. 2022 (arXiv:2208.01618). A file holds one tensor, of any name, or one for each text
encoder of SDXL, `clip_l` and `clip_g`.
"""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.weights import SUFFIX, read_tensors
from engine.diffusion.text.text_encoders import Embedding
from engine.errors import CheckpointUnavailable
from engine.graph.models_folder import EMBEDDINGS, pickled_refused

_log = logging.getLogger(__name__)
_ENCODERS = {"clip_l", "clip_g", "clip_h"}


class Embeddings:
    """The embeddings in the folder, each of which is read when a prompt names it."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def listed(self) -> ListedEmbeddings:
        """Those in the folder now, for one text. The folder is read once, however many it names."""
        return ListedEmbeddings(self._store)


class ListedEmbeddings:
    def __init__(self, store: ModelStore) -> None:
        self._store = store
        self._is_noted = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the files, such as `sub/word.safetensors`."""
        return self._store.models.names(EMBEDDINGS)

    @cached_property
    def _outermost(self) -> dict[str, str]:
        """The names by what they end with, with or without the suffix, from a `/` on."""
        found: dict[str, str] = {}
        for name in sorted(self.names, key=lambda name: name.count("/")):
            parts = name.split("/")
            for start in range(len(parts)):
                tail = "/".join(parts[start:])
                found.setdefault(tail, name)
                found.setdefault(tail.removesuffix(SUFFIX), name)
        return found

    @cached_property
    def _pickled(self) -> dict[str, Path]:
        return self._store.models.pickled(EMBEDDINGS)

    def find(self, word: str) -> Embedding | None:
        """The embedding of that name, with or without its suffix and folder.

        None if there is none: the word is then left out of the prompt, as in ComfyUI. Raises
        CheckpointUnavailable if there is one that cannot be read.
        """
        if name := self._outermost.get(word):
            return self._store.get(EMBEDDINGS, name, read_embedding)
        if pickled := self._pickled.get(word):
            raise pickled_refused(pickled)
        if not self._is_noted:  # a text may name thousands
            self._is_noted = True
            _log.warning(
                "embedding left out: there is none", extra={"action": "encode", "chars": len(word)}
            )
        return None


def read_embedding(path: Path, device: torch.device) -> Embedding:
    """An embedding with vectors in float32; raises CheckpointUnavailable."""
    tensors = read_tensors(path)
    vectors = {
        key: _rows(tensor).to(device, torch.float32)
        for key, tensor in tensors.items()
        if tensor.is_floating_point() and tensor.ndim in {1, 2}
    }
    if set(vectors) & _ENCODERS:
        vectors = {key: rows for key, rows in vectors.items() if key in _ENCODERS}
    elif "emb_params" in vectors:
        vectors = {"emb_params": vectors["emb_params"]}
    if not vectors or (len(vectors) > 1 and not set(vectors) <= _ENCODERS):
        raise CheckpointUnavailable(f"{path.name} is no embedding: it has no emb_params or clip_*")
    return Embedding(vectors)


def _rows(tensor: Tensor) -> Tensor:
    return tensor[None] if tensor.ndim == 1 else tensor
