"""Keys and values of cross-attention, kept from one UNet call to the next.

They depend on the texts alone, and the texts of a batch mostly stay the same from step to step.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.diffusion.adapters import Adapters, key_of

_LIMIT_BYTES = 256 * 2**20
"""The limit for each UNet. What does not fit is computed again at each call."""


class CrossAttentionCache:
    """The texts of a UNet's last call, and the keys and values that its layers made of them.

    A deep copy is empty, so that a copy of a UNet, whose weights may change, has its own cache.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._texts: tuple[Tensor, ...] = ()
        self._key: Hashable = None
        self._joined = torch.empty(0)
        self._projections: dict[str, Tensor] = {}
        self._free_bytes = limit_bytes

    def __deepcopy__(self, _memo: Any) -> CrossAttentionCache:
        return CrossAttentionCache(self._limit_bytes)

    def join_texts(
        self,
        texts: Sequence[Tensor],
        sizes: Sequence[int],
        length: int,
        *,
        adapters: Sequence[Adapters] = (),
    ) -> Tensor:
        """What `join_texts` gives; the very same tensor as before for the same texts.

        `adapters` are those that change the projections of each text.
        """
        of_texts = tuple((id(text), size) for text, size in zip(texts, sizes, strict=True))
        key = length, of_texts, tuple(map(key_of, adapters))
        if key != self._key:
            # Holding the texts keeps their ids from being given to other tensors.
            self._key, self._texts = key, tuple(texts)
            self._joined = join_texts(texts, sizes, length)
            self._projections, self._free_bytes = {}, self._limit_bytes
        return self._joined

    def get(self, layer: str, texts: Tensor) -> Tensor | None:
        """What the layer of that name made of `texts`; None unless they are those of this call."""
        return self._projections.get(layer) if texts is self._joined else None

    def put(self, layer: str, texts: Tensor, projection: Tensor) -> None:
        """Keep what a layer made of the texts of this call, as far as the limit allows."""
        if texts is self._joined and projection.nbytes <= self._free_bytes:
            self._free_bytes -= projection.nbytes
            self._projections[layer] = projection


def join_texts(texts: Sequence[Tensor], sizes: Sequence[int], length: int) -> Tensor:
    """(rows, length, width) of texts (1 or size, tokens, width), each of them for `size` rows.

    A text is repeated up to `length` tokens, a multiple of its own. Attention weighs the repeated
    tokens as it weighs them once.
    """
    return torch.cat(
        [
            text.expand(size, -1, -1).repeat(1, length // text.shape[1], 1)
            for text, size in zip(texts, sizes, strict=True)
        ]
    )
