"""The normal numbers that torch draws on CUDA, computed on a CPU.

A GPU draws them with the counter-based generator Philox4x32-10 (Salmon et al. 2011, "Parallel
random numbers: as easy as 1, 2, 3") and the transform of Box and Muller (1958), in float32. The
WebUI calls this source NV.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Words: TypeAlias = NDArray[np.uint64]
"""Words of 32 bits. They are stored in 64 bits, so that a product of two words fits."""

_WORD = 2**32 - 1
_BITS, _LOW = np.uint64(32), np.uint64(_WORD)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_UNIT = np.float32(2**-32)
_TURN = np.float32(2 * math.pi) * _UNIT
_CHUNK = 2**14
"""How many numbers are computed together. Their words fit into the cache of a CPU."""


def philox(counter: Sequence[Words], key: tuple[int, int]) -> list[Words]:
    """Return the four random words for each counter of four words. The arrays are broadcast."""
    first, second, third, fourth = counter
    for key_0, key_1 in _round_keys(key):
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second = (right >> _BITS) ^ second ^ key_0, right & _LOW
        third, fourth = (left >> _BITS) ^ fourth ^ key_1, left & _LOW
    return [first, second, third, fourth]


def _round_keys(key: tuple[int, int]) -> Iterator[tuple[np.uint64, np.uint64]]:
    for number in range(_ROUNDS):
        first, second = (k + number * step for k, step in zip(key, _KEY_STEPS, strict=True))
        yield np.uint64(first & _WORD), np.uint64(second & _WORD)


class Philox:
    """A generator that draws the numbers of `torch.Generator("cuda")` with the same seed.

    The numbers agree except for rounding, because the logarithm and the sine of a GPU have other
    last digits. They agree only for a tensor that has at most as many numbers as the GPU has
    threads: the number of its multiprocessors times the threads of each, for example 125,952 on an
    RTX 3090 and 221,184 on an A100. For a larger tensor, each thread of the GPU draws several
    numbers, so that the numbers differ between GPUs.
    """

    def __init__(self, seed: int) -> None:
        self._key = seed & _WORD, (seed >> 32) & _WORD
        self._draws = 0

    def randn(self, shape: Sequence[int]) -> Tensor:
        """Return the next normal numbers, in float32 on the CPU."""
        numbers = np.empty(math.prod(shape), np.float32)
        for start in range(0, len(numbers), _CHUNK):
            chunk = numbers[start : start + _CHUNK]
            chunk[:] = self._chunk(np.arange(start, start + len(chunk), dtype=np.uint64))
        self._draws += 1
        return torch.from_numpy(numbers).reshape(*shape)

    def _chunk(self, places: Words) -> NDArray[np.float32]:
        """Return the numbers at these places of a tensor.

        A counter gives four words and so four numbers, but a thread uses only the first number.
        """
        zero = np.zeros(1, np.uint64)
        first, second, *_ = philox([zero + self._draws, zero, places, zero], self._key)
        # The words i and j stand for the uniform number (i + 0.5) / 2**32 and for an angle.
        uniform = first.astype(np.float32) * _UNIT + _UNIT / 2
        angle = second.astype(np.float32) * _TURN + _TURN / 2
        chunk: NDArray[np.float32] = np.sqrt(-2 * np.log(uniform)) * np.sin(angle)
        return chunk
