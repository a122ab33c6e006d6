"""The events of a run: its progress, its results and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of the `total` sampler steps of the graph are done."""

    done: int
    total: int
    node_id: str = field(default="", compare=False)
    """The node under way."""
    class_type: str = field(default="", compare=False)
    rows: int | None = field(default=None, compare=False)
    """In the last denoising call, those of other runs included; None before the first."""
    images: int = field(default=0, compare=False)
    """How many results were reported."""
    preview: bytes | None = field(default=None, compare=False, repr=False)
    """What the picture looks like so far, as a JPEG; None where there is nothing new to see."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageReady:
    """An image is ready. `pixels` is (height, width, 3); `seed` is the seed of its sampler."""

    index: int
    node_id: str
    pixels: NDArray[np.uint8]
    seed: int | None


@dataclass(frozen=True, slots=True, eq=False)
class LatentReady:
    """A batch of latents is ready. `samples` is (batch, 4, height / 8, width / 8)."""

    index: int
    node_id: str
    samples: NDArray[np.float32]
    seed: int | None


class Note(StrEnum):
    """What a run did otherwise than it was asked to, of which it still made its results."""

    VAE_TILED = "vae_tiled"
    """Memory ran out, so an image was decoded or encoded tile by tile. Its pixels differ a little
    from those of the whole."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has succeeded. `images` counts its images and its batches of latents."""

    images: int
    stage_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    """The seconds of each stage; see `StageClock`."""
    rows_per_call: float | None = field(default=None, compare=False)
    """Rows in a denoising call, those of other runs included; None where there was no call."""
    steps: int = field(default=0, compare=False)
    """Of its samplers."""
    beside: tuple[str, ...] = field(default=(), compare=False)
    """The names of runs that shared device calls with it; see `StageClock`."""
    notes: tuple[Note, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Errored:
    """The run has failed or was cancelled."""

    error: EngineError


@dataclass(frozen=True, slots=True, eq=False)
class SavedLatent:
    """A batch of latents as an output node returns it; `samples` is as in `LatentReady`."""

    samples: NDArray[np.float32]


EngineEvent: TypeAlias = Progress | ImageReady | LatentReady | Finished | Errored


@dataclass(slots=True)
class PassedSigmas:
    """Reports steps as a sampler passes the sigmas of its schedule."""

    on_steps: Callable[[int], None]
    steps: int
    sigmas: int
    _done: int = 0

    def pass_sigmas(self, count: int) -> None:
        self._report(count * self.steps // self.sigmas)

    def end(self) -> None:
        self._report(self.steps)

    def _report(self, done: int) -> None:
        if done > self._done:
            self.on_steps(done - self._done)
            self._done = done
