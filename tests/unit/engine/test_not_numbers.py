"""A result with NaN, which would be a black picture, is an error that names its node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.diffusion.images.latents import Latent
from engine.errors import NodeFailed
from tests.support.engine.engines import running
from tests.support.engine.stores import context_of, store_of
from tests.support.engine.workflows import TINY, text_to_image


@pytest.mark.parametrize(
    ("weight", "node"),
    [
        ("model.diffusion_model.out.2.bias", ("3", "KSampler")),
        ("first_stage_model.decoder.conv_out.bias", ("8", "VAEDecode")),
    ],
)
def test_a_checkpoint_with_nan_fails_the_job(
    tmp_path: Path, tiny_root: Path, weight: str, node: tuple[str, str]
) -> None:
    root = tmp_path / "models"
    shutil.copytree(tiny_root, root)
    tensors = load_file(root / "checkpoints" / TINY)
    tensors[weight] = torch.full_like(tensors[weight], torch.nan)
    save_file(tensors, root / "checkpoints" / TINY)
    with running(root) as rig:
        error = rig.submit(text_to_image(steps=2)).error(NodeFailed)
    assert (error.node_id, error.class_type) == node
    assert "NaN" in str(error)


def test_one_value_is_enough(tmp_path: Path) -> None:
    context = context_of(store_of(tmp_path))
    images, samples = torch.zeros(2, 8, 8, 3), torch.zeros(1, 4, 2, 2)
    assert len(context.pixels(images)) == 2
    assert context.saved(Latent(samples)).samples.shape == (1, 4, 2, 2)
    images[1, 7, 7, 2] = samples[0, 3, 1, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        context.pixels(images)
    with pytest.raises(ValueError, match="NaN"):
        context.saved(Latent(samples))
