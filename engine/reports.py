"""What a run tells its submitter while it goes and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Progress:
    """Sampler steps done, of those that all sampler nodes of the graph take."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class ImageReady:
    """An image: `pixels` is (height, width, 3) of 0..255; `seed` that of its sampler."""

    index: int
    node_id: str
    pixels: NDArray[np.uint8]
    seed: int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run went through, with so many images."""

    images: int


@dataclass(frozen=True, slots=True)
class Errored:
    """The run ended early."""

    error: EngineError


EngineEvent: TypeAlias = Progress | ImageReady | Finished | Errored
