"""What a UNet's layers made of the texts of its last call, for a next call with the same texts.

Keys and values of cross-attention depend on the text alone, and a cohort keeps its texts from step
to step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

_MOST_BYTES = 256 * 2**20
"""Kept for each UNet; what is beyond is computed again."""


class KeptTexts:
    """The texts of the last call, joined. A copy of a UNet has its own."""

    def __init__(self, limit_bytes: int = _MOST_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._key: Any = None
        self._texts: tuple[Tensor, ...] = ()
        self._joined = torch.empty(0)

    def __deepcopy__(self, _memo: Any) -> KeptTexts:
        return KeptTexts(self._limit_bytes)

    def joined(self, texts: Sequence[Tensor], sizes: Sequence[int], length: int) -> Tensor:
        """See `joined`; the very same tensor where the last call had the same texts."""
        key = length, tuple((id(text), size) for text, size in zip(texts, sizes, strict=True))
        if key != self._key:
            # The texts are held, too, so that their ids stay theirs.
            self._key, self._texts = key, tuple(texts)
            self._joined = joined(texts, sizes, length)
            self._joined.projected = Projected(self._limit_bytes)  # type: ignore[attr-defined]
        return self._joined


class Projected:
    """What layers made of one tensor, up to a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._room_bytes = limit_bytes
        self._found: dict[nn.Module, Tensor] = {}

    def of(self, layer: nn.Module, make: Callable[[], Tensor]) -> Tensor:
        found = self._found.get(layer)
        if found is None:
            found = make()
            if found.nbytes <= self._room_bytes:
                self._room_bytes -= found.nbytes
                self._found[layer] = found
        return found


def joined(texts: Sequence[Tensor], sizes: Sequence[int], length: int) -> Tensor:
    """(rows, length, width) of texts (1 or size, tokens, width), each for `size` rows.

    Tokens repeated to `length` weigh in attention as they did once.
    """
    return torch.cat(
        [
            text.expand(size, -1, -1).repeat(1, length // text.shape[1], 1)
            for text, size in zip(texts, sizes, strict=True)
        ]
    )
