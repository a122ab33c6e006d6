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


@dataclass(frozen=True, slots=True, eq=False)
class LatentReady:
    """A batch of latents to be kept: `samples` is (batch, 4, height/8, width/8) float32."""

    index: int
    node_id: str
    samples: NDArray[np.float32]
    seed: int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The run went through, with so many images and latents."""

    images: int


@dataclass(frozen=True, slots=True)
class Errored:
    """The run ended early."""

    error: EngineError


@dataclass(frozen=True, slots=True, eq=False)
class SavedLatent:
    """What an output node answers in place of an image: see `LatentReady`."""

    samples: NDArray[np.float32]


EngineEvent: TypeAlias = Progress | ImageReady | LatentReady | Finished | Errored
