"""Graphs by name, and ComfyUI's results for them: `tests/golden/comfyui.npz`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.comfyui import conditioning_cases as conditioning
from tests.support.comfyui import picture_cases as picture
from tests.support.comfyui import sampling_cases as sampling

ANSWERS = Path(__file__).parents[2] / "golden" / "comfyui.npz"
WEIGHTS = "weights/"
"""The prefix of a model's name for the digest of the file that ComfyUI loaded."""
GROUPS = {
    "sampler": sampling.samplers,
    "schedule": sampling.schedules,
    "start": sampling.starts,
    "advanced": sampling.advanced_samplers,
    "custom": sampling.custom_samplers,
    "patch": sampling.model_patches,
    "text": conditioning.texts,
    "conditioning": conditioning.conditionings,
    "placed": conditioning.placed,
    "lora": conditioning.loras,
    "embedding": conditioning.embeddings,
    "control": conditioning.control_nets,
    "latent": picture.latents,
    "batch": picture.batches,
    "mask": picture.noise_masks,
    "inpaint": picture.inpainting,
    "image": picture.images,
}
CASES = {
    f"{group}_{name}": graph for group, make in GROUPS.items() for name, graph in make().items()
}


def read_answers() -> dict[str, Any]:
    """Return by case a latent in float32 or images in uint8, [count, height, width, 3]; and
    digests.
    """
    with np.load(ANSWERS) as answers:
        return dict(answers)


def write_answers(answers: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    weights = {WEIGHTS + name: np.array(digest) for name, digest in digests.items()}
    np.savez_compressed(ANSWERS, **answers, **weights)
