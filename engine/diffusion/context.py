"""What a node's body can ask the engine for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine import names
from engine.batcher import Work
from engine.diffusion import latents, schedules
from engine.diffusion.checkpoints import Checkpoint, CheckpointStore, Clip, Load, Model, Vae
from engine.diffusion.conditioning import Conditioning
from engine.diffusion.latents import Images, Latent
from engine.diffusion.text import Encode, Encoded, chunks_of, tokens_in_parts, weighted
from engine.diffusion.trajectory import Course, Guidance, Noising, trajectory
from engine.diffusion.vae import Decode
from engine.errors import InputFileUnavailable


class Context:
    """One run's access to models, device and files. `on_steps` is told of sampler steps."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        on_steps: Callable[[int], None],
        input_files: Mapping[str, bytes],
        step_seed_offset: int = 0,
    ) -> None:
        self._store = store
        self._on_steps = on_steps
        self._input_files = input_files
        self._step_seed_offset = step_seed_offset

    def load(self, name: str) -> Work[Checkpoint]:
        """The checkpoint of that name."""
        checkpoint: Checkpoint = yield Load(self._store, name)
        return checkpoint

    def input_file(self, name: str) -> bytes:
        """The file of that name that came with the job. Raises InputFileUnavailable."""
        try:
            return self._input_files[name]
        except KeyError as error:
            raise InputFileUnavailable(f"There is no input file {name!r}.") from error

    def encode(self, clip: Clip, text: str) -> Work[Conditioning]:
        """The conditioning of a prompt."""
        chunks = chunks_of(text, clip.tokenizer)
        encoded: Encoded = {}
        for some in tokens_in_parts(chunks):
            encoded |= yield Encode(clip, some)
        return weighted(chunks, encoded)

    def empty_latent(self, width: int, height: int, batch_size: int) -> Latent:
        """Zeros for images of `width` x `height` pixels."""
        return latents.empty_latent(width, height, batch_size)

    def sigmas(
        self,
        model: Model,
        scheduler: str,
        steps: int,
        denoise: float,
        *,
        sampler: str | None = None,
    ) -> Tensor:
        """The levels to go, falling to 0; none where nothing is to be done.

        Some samplers want their schedules changed: `sampler` is the one that they are for.
        """
        skips = sampler is not None and names.SAMPLER_OF[sampler].skips_penultimate
        return schedules.sigmas_for(
            model.levels, scheduler, steps, denoise, skips_penultimate=skips
        )

    def sample(
        self,
        model: Model,
        latent: Latent,
        *,
        sampler: str,
        sigmas: Tensor,
        steps: int,
        seed: int,
        positive: Conditioning,
        negative: Conditioning,
        cfg: float,
        adds_noise: bool = True,
        step_seed_offset: int | None = None,
    ) -> Work[tuple[Latent, Latent]]:
        """The latent with noise of `seed` put on and taken off again along `sigmas`, and the last
        estimate of what it would be without any.

        Progress is told in `steps`, however many levels the schedule has. `step_seed_offset`: the
        noise on the way is of the seed that far from `seed`; None: as the engine was told.
        """
        progress = _Progress(self._on_steps, steps, levels=len(sigmas) - 1)
        if step_seed_offset is None:
            step_seed_offset = self._step_seed_offset
        found = yield from trajectory(
            model,
            latent,
            Course(sampler, sigmas),
            guidance=Guidance(positive, negative, cfg),
            noising=Noising(seed, adds_noise, step_seed_offset),
            on_level=progress.reach,
        )
        progress.end()
        return found

    def decode(self, vae: Vae, latent: Latent) -> Work[Images]:
        """The images of a latent, asked for one after the other."""
        images: list[Images] = []
        for samples in latent.samples.split(1):
            images.append((yield Decode(vae, samples)))  # noqa: PERF401 - a yield is no comprehension
        return torch.cat(images)

    def pixels(self, images: Images) -> list[NDArray[np.uint8]]:
        """Each image as (height, width, 3) of 0..255."""
        return latents.to_pixels(images)


@dataclass(slots=True)
class _Progress:
    """Tells of steps as a sampler leaves the levels of its schedule behind."""

    on_steps: Callable[[int], None]
    steps: int
    levels: int
    _done: int = 0

    def reach(self, level: int) -> None:
        self._tell(level * self.steps // self.levels)

    def end(self) -> None:
        self._tell(self.steps)

    def _tell(self, done: int) -> None:
        if done > self._done:
            self.on_steps(done - self._done)
            self._done = done
