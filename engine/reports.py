"""The events of a run: its progress, its results and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from engine.errors import EngineError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run: `done` of the `total` sampler steps of its graph have ended."""

    done: int
    total: int
    node_id: str = field(default="", compare=False)
    class_type: str = field(default="", compare=False)
    rows: int | None = field(default=None, compare=False)
    """The number of rows of the last denoising call, including rows of other runs. None before the
    first call."""
    images: int = field(default=0, compare=False)
    preview: bytes | None = field(default=None, compare=False, repr=False)
    """A preview of the image as a JPEG; None if there is no new preview."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageReady:
    """An image is ready. `pixels` is (height, width, 3 or 4); `seed` is as in `Graph.seed_of`."""

    index: int
    node_id: str
    pixels: NDArray[np.uint8]
    seed: int | None
    notes: tuple[str, ...] = ()
    """The notes of the run so far."""


@dataclass(frozen=True, slots=True, eq=False)
class LatentReady:
    """A batch of latents is ready. `samples` is (batch, channels, height / 8, width / 8)."""

    index: int
    node_id: str
    samples: NDArray[np.float32]
    seed: int | None
    notes: tuple[str, ...] = ()
    """The notes of the run so far."""


@dataclass(frozen=True, slots=True, eq=False)
class TextReady:
    """A text is ready."""

    index: int
    node_id: str
    text: str
    seed: int | None
    notes: tuple[str, ...] = ()
    """The notes of the run so far."""


class Note(StrEnum):
    """The kind of a deviation from the request in a run that succeeded."""

    VAE_TILED = "vae_tiled"
    """Memory ran out, so the VAE worked tile by tile, which changes the result a little."""
    LORA_LEFT_OUT = "lora_left_out"
    """There is no LoRA of that name."""
    NETWORK_LEFT_OUT = "network_left_out"
    """A prompt names an extra network of another kind, such as a hypernetwork."""
    EMBEDDING_LEFT_OUT = "embedding_left_out"
    """The embedding does not exist, or lacks vectors for a text encoder. That encoder does not use
    it, or reads its name as a word.
    """

    def about(self, name: str) -> str:
        """Return the note about the model of that name."""
        shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
        return f"{self}: {shown}"


@dataclass(frozen=True, slots=True)
class Finished:
    """The run has succeeded. `images` counts its images, batches of latents and texts."""

    images: int
    stage_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    """The seconds of each stage; see `StageClock`."""
    rows_per_call: float | None = field(default=None, compare=False)
    """The mean number of rows in a denoising call, including rows of other runs. None if there was
    no call."""
    steps: int = field(default=0, compare=False)
    runs_in_shared_calls: tuple[str, ...] = field(default=(), compare=False)
    """The span links of the runs that shared device calls with this run."""
    notes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class ErroredNode:
    """The node that raised an exception."""

    node_id: str
    class_type: str
    exception: str
    """The name of the exception's class, with its module unless it is a builtin one."""


@dataclass(frozen=True, slots=True)
class Errored:
    error: EngineError
    node: ErroredNode | None = field(default=None, compare=False)
    """None if no node has caused the error."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedLatent:
    """A batch of latents that an output node returns; `samples` is as in `LatentReady`."""

    samples: NDArray[np.float32]


ResultReady: TypeAlias = ImageReady | LatentReady | TextReady
EngineEvent: TypeAlias = Progress | ResultReady | Finished | Errored


@dataclass(slots=True)
class PassedSigmas:
    """Converts the progress in sigmas of a sampler to steps, and reports the steps."""

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
