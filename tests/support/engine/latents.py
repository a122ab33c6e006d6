"""Runs workflows and compares the latents that they decode."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.batcher import BatchedRun, Batcher
from engine.executor import BODIES, Executor
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Body
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.options import DeviceOptions
from engine.reports import SavedLatent


def latent_and_images(
    prompt: dict[str, Any], catalogue: Catalogue, bodies: Mapping[str, Body] = BODIES
) -> tuple[Any, list[Any]]:
    """The latent that was decoded, and the images."""
    ((latent, images),) = all_latents_and_images([prompt], catalogue, bodies)
    return latent, images


def all_latents_and_images(
    prompts: Sequence[dict[str, Any]], catalogue: Catalogue, bodies: Mapping[str, Body] = BODIES
) -> list[tuple[Any, list[Any]]]:
    """For each prompt the latent that was decoded first, and the images; all run at once.

    `bodies` replace those of the nodes.
    """
    runs = recorded(prompts, catalogue, bodies=bodies)
    return [(run.latents[0].numpy(), run.images) for run in runs]


def recorded(
    prompts: Sequence[dict[str, Any]],
    catalogue: Catalogue,
    input_files: Mapping[str, bytes] | None = None,
    *,
    bodies: Mapping[str, Body] = BODIES,
) -> list[Recorded]:
    """The results of each prompt; all run at once. `bodies` replace those of the nodes."""
    import torch

    from engine.diffusion.device import Device

    device = Device(catalogue.models, DeviceOptions())
    batcher = Batcher()
    errors: list[Exception | None] = []
    runs = [Recorded() for _ in prompts]
    for run, prompt in zip(runs, prompts, strict=True):
        execution = Executor(
            validate(prompt, catalogue, Limits()),
            device.context(Limits(), lambda _: None, input_files or {}),
            on_output=run.take,
            bodies={**bodies, "VAEDecode": run.decode},
        ).run()
        batcher.join(BatchedRun(execution, on_end=errors.append))
    with torch.inference_mode():
        while not batcher.idle:
            batcher.step()
    assert errors == [None] * len(prompts)
    return runs


class Recorded:
    """The results of a run, and the latents that it decoded."""

    def __init__(self) -> None:
        self.latents: list[Any] = []
        self.images: list[Any] = []
        self.saved: dict[str, Any] = {}
        """The saved latents by the id of the node that saved them."""

    def decode(self, context: Any, samples: Any, vae: Any) -> Any:
        self.latents.append(samples.samples)
        return BODIES["VAEDecode"](context, samples=samples, vae=vae)

    def take(self, node_id: str, results: Any) -> None:
        for each in results:
            if isinstance(each, SavedLatent):
                self.saved[node_id] = each.samples
            else:
                self.images.append(each)


def latents_of(
    prompts: Sequence[dict[str, Any]], catalogue: Catalogue, bodies: Mapping[str, Body] = BODIES
) -> list[Any]:
    """For each prompt the latent that was decoded first; all run at once."""
    return [latent for latent, _ in all_latents_and_images(prompts, catalogue, bodies)]


def shared_images(prompts: Sequence[dict[str, Any]], catalogue: Catalogue) -> list[Any]:
    """The first image of each prompt, all run at once, which are as if each had run alone."""
    together = [images[0].astype(int) for _, images in all_latents_and_images(prompts, catalogue)]
    for prompt, image in zip(prompts, together, strict=True):
        _, (alone,) = latent_and_images(prompt, catalogue)
        assert farthest(image, alone) <= 1
    return together


def farthest(one: Any, other: Any) -> int:
    """The largest difference of two images, in levels of 255."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())


def psnr_db_of(found: Any, expected: Any) -> float:
    """The peak signal-to-noise ratio in dB; the peak is the range of the expected values."""
    error = float(np.mean((found.astype(np.float64) - expected.astype(np.float64)) ** 2))
    peak = float(expected.max() - expected.min())
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)
