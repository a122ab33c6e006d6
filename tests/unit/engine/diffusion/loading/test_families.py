"""Stable Diffusion 2 and XL: file and folder give the same picture, which is that of diffusers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.loaders.single_file_utils import (
    convert_ldm_unet_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors.torch import load_file, save_file

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoint_info import CONFIGS, inspect
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text.text_encoders import CLIP_G, made_on_meta
from engine.errors import CheckpointUnavailable, EngineError
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine import judges
from tests.support.engine.latents import all_latents_and_images, psnr_db_of
from tests.support.engine.workflows import node, text_to_image

FAMILIES = [Family.SD2, Family.SDXL, Family.SDXL_REFINER]
LEAST_DB = 90
"""The difference is float32 rounding; a wrong size or token causes a far larger one."""


@pytest.fixture
def copied(families_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(families_root, tmp_path / "models")) / "checkpoints"


def drawing(checkpoint: str, **encoders: Any) -> dict[str, Any]:
    """The default workflow with the settings of `judges`; keywords replace nodes of the texts."""
    prompt = text_to_image(seed=judges.SEED, steps=judges.STEPS, cfg=judges.CFG)
    prompt["4"]["inputs"]["ckpt_name"] = checkpoint
    prompt["6"]["inputs"]["text"] = judges.PROMPT
    prompt["7"]["inputs"]["text"] = judges.NEGATIVE
    return prompt | encoders


# diffusers' scheduler calls NumPy in an outdated way.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_file_and_folder_give_diffusers_latents(family: Family, families_root: Path) -> None:
    catalogue = Catalogue(ModelsFolder(families_root))
    prompts = [drawing(f"{family}.safetensors"), drawing(f"{family}-folder")]
    (single, pictures), (folder, others) = all_latents_and_images(prompts, catalogue)
    assert np.array_equal(single, folder)
    assert np.array_equal(pictures, others)
    expected = judges.latents_of(family, families_root / "checkpoints" / f"{family}-folder")
    assert psnr_db_of(single, expected.numpy()) >= LEAST_DB


def test_size_conditioning_texts_and_scores_are_those_of_the_nodes(families_root: Path) -> None:
    """Without such a node they are the size of the picture, and a fixed score for each prompt."""
    sizes = {"width": 64, "height": 64, "crop_w": 0, "crop_h": 0}
    target = {"target_width": 64, "target_height": 64}
    base, refiner = "sdxl.safetensors", "sdxl_refiner.safetensors"

    def xl(text_g: str, text_l: str, **others: int) -> dict[str, Any]:
        inputs = sizes | target | others
        return node("CLIPTextEncodeSDXL", clip=["4", 1], text_g=text_g, text_l=text_l, **inputs)

    def refined(text: str, ascore: float) -> dict[str, Any]:
        inputs = {"width": 64, "height": 64, "ascore": ascore}
        return node("CLIPTextEncodeSDXLRefiner", clip=["4", 1], text=text, **inputs)

    text, negative = judges.PROMPT, judges.NEGATIVE
    both = {"6": xl(text, text), "7": xl(negative, negative)}
    scored = {"6": refined(text, 6.0), "7": refined(negative, 2.5)}
    prompts = [
        drawing(base),
        drawing(base, **both),
        drawing(base, **both | {"6": xl(text, "")}),
        drawing(base, **both | {"6": xl(text, text, crop_h=32)}),
        drawing(base, **both | {"6": xl(text, text, target_width=128)}),
        drawing(refiner),
        drawing(refiner, **scored),
        drawing(refiner, **scored | {"7": refined(negative, 6.0)}),
    ]
    runs = all_latents_and_images(prompts, Catalogue(ModelsFolder(families_root)))
    plain, same, *others, scored_plain, scored_same, scored_other = [run[0] for run in runs]
    assert psnr_db_of(same, plain) >= LEAST_DB
    assert psnr_db_of(scored_same, scored_plain) >= LEAST_DB
    assert [psnr_db_of(other, plain) < 60 for other in others] == [True] * 3
    assert psnr_db_of(scored_other, scored_plain) < 60


def test_a_text_of_another_model_is_refused(families_root: Path) -> None:
    store = ModelStore(ModelsFolder(families_root), torch.device("cpu"), 2**30)
    model = load_checkpoint(store, "sdxl.safetensors").model
    latent = torch.zeros(1, 4, 8, 8)
    for foreign in (Condition(torch.zeros(1, 77, 16)), Condition(torch.zeros(1, 77, 40))):
        with pytest.raises(EngineError, match="encoded for another model"):
            model.with_size_conditioning((foreign,), latent, negative=False, seed=0)


@pytest.mark.parametrize("name", ["sd15", "sd20", "sd21", "sdxl_base", "sdxl_refiner"])
def test_names_of_the_full_models_are_those_of_diffusers_converter(name: str) -> None:
    config = json.loads((CONFIGS / name / "unet" / "config.json").read_text())
    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(config)
    key_map = layout.unet(unet.state_dict(), config, "model.diffusion_model.")
    keys = {stored.key: stored.key for stored in key_map.values()}
    theirs = convert_ldm_unet_checkpoint(keys, config)
    assert {ours: stored.key for ours, stored in key_map.items()} == theirs


def test_open_clip_is_read_as_diffusers_converter_does() -> None:
    config = json.loads((CONFIGS / "sdxl_base" / "text_encoder_2" / "config.json").read_text())
    small = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    encoder = made_on_meta({**config, **small, "num_attention_heads": 2, "vocab_size": 9}, CLIP_G)
    key_map = layout.open_clip(encoder.state_dict(), "x.")
    shapes = {n: t.shape for n, t in encoder.state_dict().items()}
    shapes["text_projection.weight"] = torch.Size([1280, 8])
    checkpoint = {
        stored.key: torch.randn(shapes[name][0] * 3, *shapes[name][1:])
        if stored.third is not None
        else torch.randn(*shapes[name][:: -1 if stored.transposed else 1])
        for name, stored in key_map.items()
    }
    # The converter takes the size of a third from the projection, so that has its full width.
    checkpoint["x.text_projection"] = torch.randn(8, 1280)
    theirs = convert_open_clip_checkpoint(encoder, checkpoint, prefix="x.")
    for name, stored in key_map.items():
        tensor = checkpoint[stored.key]
        if stored.third is not None:
            tensor = tensor.chunk(3)[stored.third]
        assert torch.equal(tensor.T if stored.transposed else tensor, theirs[name]), name


def test_a_v_prediction_model_is_recognised_by_its_configuration_then_by_a_key(
    copied: Path,
) -> None:
    single = copied / "sdxl.safetensors"
    assert inspect(single).prediction == "epsilon"
    tensors = load_file(single)
    save_file({**tensors, "v_pred": torch.zeros(0)}, single)
    assert inspect(single).prediction == "epsilon"  # `sdxl.config/` says so
    shutil.rmtree(single.with_suffix(".config"))
    assert inspect(single).prediction == "v_prediction"


@pytest.mark.parametrize(("deviation", "prediction"), [(0.01, "epsilon"), (0.2, "v_prediction")])
def test_a_stable_diffusion_2_without_configuration_is_recognised_by_a_deviation(
    deviation: float, prediction: str, copied: Path
) -> None:
    single = copied / "sd2.safetensors"
    shutil.rmtree(single.with_suffix(".config"))
    bias = "model.diffusion_model.output_blocks.11.1.transformer_blocks.0.norm1.bias"
    tensors = load_file(single) | {bias: deviation * torch.tensor([1.0, -1.0] * 160)}
    save_file(tensors, single)
    assert inspect(single).prediction == prediction


def test_sizes_that_do_not_fit_are_named_with_file_key_and_both_shapes(copied: Path) -> None:
    shutil.rmtree(copied / "sdxl.config")
    store = ModelStore(ModelsFolder(copied.parent), torch.device("cpu"), 2**30)
    with pytest.raises(CheckpointUnavailable) as caught:
        load_checkpoint(store, "sdxl.safetensors")
    message = str(caught.value)
    for part in ("sdxl.safetensors", "model.diffusion_model.", "16x4x3x3", "320x4x3x3"):
        assert part in message


@pytest.mark.parametrize("missing", ["vae", "text_encoder_2"])
def test_a_folder_that_lacks_a_component_says_which(missing: str, copied: Path) -> None:
    shutil.rmtree(copied / "sdxl-folder" / missing)
    with pytest.raises(CheckpointUnavailable, match=missing):
        inspect(copied / "sdxl-folder")


def test_a_folder_of_pickles_is_refused(copied: Path) -> None:
    weights = copied / "sdxl-folder" / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(CheckpointUnavailable, match="pickled"):
        inspect(copied / "sdxl-folder")
