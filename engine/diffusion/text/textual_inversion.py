"""Textual inversion embeddings from the folder `embeddings/` (Gal et al. 2022, arXiv:2208.01618).

A file has one tensor with any name, or one tensor for each text encoder, such as `clip_l` and
`clip_g` for SDXL.
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
_MOST_VECTORS = 1024
"""Each vector takes a token of the prompt. Embeddings have at most some hundred."""


class Embeddings:
    """The embeddings in the folder. An embedding is read when a prompt names it."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    def listed(self) -> ListedEmbeddings:
        """Return the current embeddings in the folder. The result lists the folder only once."""
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
        """The names of the files, by each ending of their paths, with and without the suffix.

        For `a/b.safetensors`, the endings are `a/b.safetensors` and `b.safetensors`. If several
        files have the same ending, the file with the fewest folders in its path is used.
        """
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
        """Return the embedding of that name, with or without its suffix and folder.

        Returns None if there is no such embedding. As in ComfyUI, the word is then left out of the
        prompt. Raises CheckpointUnavailable if the embedding cannot be read.
        """
        if name := self._outermost.get(word):
            return self._store.get(EMBEDDINGS, name, read_embedding)
        if pickled := self._pickled.get(word):
            raise pickled_refused(pickled)
        # Only the first missing name is logged, because a text may contain thousands of them.
        if not self._is_noted:
            self._is_noted = True
            _log.warning(
                "an embedding was left out, because it does not exist",
                extra={"action": "encode", "chars": len(word)},
            )
        return None


def read_embedding(path: Path, device: torch.device) -> Embedding:
    """Read an embedding as float32. Raises CheckpointUnavailable if the file is no embedding."""
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
        raise CheckpointUnavailable(
            f"{path.name} is not an embedding: it has no emb_params or clip_*"
        )
    if not all(0 < len(rows) <= _MOST_VECTORS for rows in vectors.values()):
        raise CheckpointUnavailable(
            f"{path.name} is not an embedding: it must have 1 to {_MOST_VECTORS} vectors"
        )
    return Embedding(vectors)


def _rows(tensor: Tensor) -> Tensor:
    return tensor[None] if tensor.ndim == 1 else tensor
