"""unCLIP: the picture is that of diffusers' pipeline, alone and beside other jobs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, StableUnCLIPImg2ImgPipeline
from diffusers.pipelines.stable_diffusion.stable_unclip_image_normalizer import (
    StableUnCLIPImageNormalizer,
)
from safetensors.torch import save_file

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.loading.checkpoint_info import inspect
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.vision.clip_vision import inspect_clip_vision, preprocessed
from engine.diffusion.vision.unclip import UnclipImage, class_labels
from engine.errors import CheckpointUnavailable, EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine import judges
from tests.support.engine.latents import all_latents_and_images, farthest, psnr_db_of
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import node, text_to_image
from tests.support.vision.clip_vision import SIDE, UNCLIP_NAME, tiny_vision, write_unclip
from training.tiny_families import UNCLIP_WIDTH

LEAST_DB = 90
AUGMENTATION = 0.1
RED, BLUE = 0xE02020, 0x2020E0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("unclip")
    write_unclip(root)
    return root


def drawing(*images: tuple[int, float]) -> dict[str, Any]:
    """The workflow of `judges`, told of images of one colour, each with its strength."""
    prompt = text_to_image(seed=judges.SEED, steps=judges.STEPS, cfg=judges.CFG)
    prompt["4"] = node("unCLIPCheckpointLoader", ckpt_name=UNCLIP_NAME)
    prompt["6"]["inputs"]["text"] = judges.PROMPT
    prompt["7"]["inputs"]["text"] = judges.NEGATIVE
    last = ["6", 0]
    for number, (color, strength) in enumerate(images):
        image, seen, told = (f"{part}{number}" for part in ("image", "seen", "told"))
        prompt[image] = node("EmptyImage", width=SIDE, height=SIDE, batch_size=1, color=color)
        prompt[seen] = node(
            "CLIPVisionEncode", clip_vision=["4", 3], image=[image, 0], crop="center"
        )
        how = {"strength": strength, "noise_augmentation": AUGMENTATION}
        links = {"conditioning": last, "clip_vision_output": [seen, 0]}
        prompt[told] = node("unCLIPConditioning", **links, **how)
        last = [told, 0]
    prompt["3"]["inputs"]["positive"] = last
    return prompt


def theirs(root: Path, color: int) -> Any:
    """The latent of diffusers' pipeline."""
    parts = judges.pipeline_of(judges.Family.SD2, root / "checkpoints" / "unclip-folder").components
    names = ("unet", "vae", "scheduler", "text_encoder", "tokenizer")
    pipeline = StableUnCLIPImg2ImgPipeline(
        **{name: parts[name] for name in names},
        feature_extractor=None,
        image_encoder=tiny_vision(),
        image_normalizer=StableUnCLIPImageNormalizer(UNCLIP_WIDTH),
        image_noising_scheduler=DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler.set_timesteps(judges.STEPS)
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(judges.SEED))
    sigma = float(pipeline.scheduler.sigmas[0])
    rgb = torch.tensor([color >> 16, color >> 8 & 255, color & 255]) / 255.0
    pixels = preprocessed(rgb.expand(1, SIDE, SIDE, 3), SIDE, crop=True)
    with torch.no_grad():
        found = pipeline(
            image_embeds=tiny_vision()(pixels).image_embeds,
            prompt=judges.PROMPT,
            negative_prompt=judges.NEGATIVE,
            num_inference_steps=judges.STEPS,
            guidance_scale=judges.CFG,
            noise_level=round(999 * AUGMENTATION),
            generator=torch.Generator().manual_seed(judges.SEED - 10),
            latents=noise * math.sqrt(1 + sigma**2),  # it scales no latents that it is given
            height=64,
            width=64,
            output_type="latent",
        ).images
    return (found / pipeline.vae.config.scaling_factor).numpy()


# diffusers' scheduler calls NumPy in an outdated way.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_picture_is_that_of_diffusers_and_the_same_beside_others(root: Path) -> None:
    prompts = [
        drawing((RED, 1.0)),
        drawing((BLUE, 1.0)),
        drawing(),
        drawing((RED, 0.5), (BLUE, 0.5)),
        drawing((RED, 0.0)),
    ]
    catalogue = Catalogue(ModelsFolder(root))
    (red, pixels), blue, none, both, zero = all_latents_and_images(prompts, catalogue)
    assert psnr_db_of(red, theirs(root, RED)) >= LEAST_DB
    ((_, alone),) = all_latents_and_images(prompts[:1], catalogue)
    assert farthest(alone[0], pixels[0]) <= 1
    assert np.array_equal(none[0], zero[0])
    found = [red, blue[0], none[0], both[0]]
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            assert psnr_db_of(one, other) < 60


def test_the_sum_of_several_images_gets_a_little_noise_of_its_own() -> None:
    embeds = torch.randn(2, 6, generator=torch.Generator().manual_seed(1))
    labels = class_labels([UnclipImage(embeds, 0.5, 0.0)], seed=3, width=12)
    generator = torch.Generator().manual_seed(3 - 10)
    first, second = (torch.randn(1, 6, generator=generator) for _ in range(2))
    levels = DDPMScheduler(beta_schedule="squaredcos_cap_v2")

    def noised(x: torch.Tensor, noise: torch.Tensor, level: int) -> torch.Tensor:
        return levels.add_noise(x, noise, torch.tensor([level]))

    total = sum(noised(each, first, 0) * 0.5 for each in embeds.split(1))
    torch.testing.assert_close(labels[:, :6], noised(total, second, 50), rtol=1e-5, atol=1e-5)


def test_sdxl_is_told_of_an_image_in_the_place_of_the_whole_text(families_root: Path) -> None:
    store = store_of(families_root)
    model = load_checkpoint(store, "sdxl.safetensors").model
    image = UnclipImage(torch.ones(1, 32), 1.0, 0.0)
    text = Condition(torch.zeros(1, 77, 40), torch.zeros(1, 32), unclip=(image,))
    latent = torch.zeros(1, 4, 8, 8)
    (found,) = model.with_size_conditioning((text,), latent, negative=False, seed=1)
    assert found.pooled is not None
    torch.testing.assert_close(found.pooled, torch.ones(1, 32), rtol=0, atol=0.1)


def test_an_image_of_another_vision_model_is_refused(root: Path) -> None:
    store = store_of(root)
    model = load_checkpoint(store, UNCLIP_NAME).model
    image = UnclipImage(torch.ones(1, UNCLIP_WIDTH + 8), 1.0, 0.0)
    text = Condition(torch.zeros(1, 77, 16), unclip=(image,))
    with pytest.raises(EngineError, match="it has the width 32, but this model needs 24"):
        model.with_size_conditioning((text,), torch.zeros(1, 4, 8, 8), negative=False, seed=1)


def test_a_published_file_is_known_by_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "sd21-unclip-h.safetensors"
    keys = {
        "model.diffusion_model.label_emb.0.0.weight": torch.zeros(2, 2048),
        "first_stage_model.x": torch.zeros(1),
        "cond_stage_model.model.x": torch.zeros(1),
    }
    save_file(keys, path)
    info = inspect(path)
    assert info.prediction == "v_prediction"
    assert info.unet.config["class_embed_type"] == "projection"
    assert info.unet.config["projection_class_embeddings_input_dim"] == 2048


def test_a_checkpoint_without_a_vision_model_says_so(families_root: Path) -> None:
    for name in ("sd2.safetensors", "sd2-folder"):
        with pytest.raises(CheckpointUnavailable, match="has no"):
            inspect_clip_vision(families_root / "checkpoints" / name)
