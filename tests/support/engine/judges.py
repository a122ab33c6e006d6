"""Latents that diffusers' own pipelines make with the tiny checkpoints, for comparison."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    EulerDiscreteScheduler,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from torch import Tensor
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from engine.families.family import Family

PROMPT, NEGATIVE = "a red circle on a blue ground", "grey"
STEPS, CFG, SEED = 2, 5.0, 3
TOKENIZER = Path(__file__).parents[3] / "engine" / "diffusion" / "configs" / "tokenizer"


def latents_of(family: Family, folder: Path) -> Tensor:
    """(1, 4, 8, 8) scaled as the VAE decodes them, by Euler along diffusers' own sigmas."""
    pipeline = pipeline_of(family, folder)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.scheduler.set_timesteps(STEPS)
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(SEED))
    sigma = float(pipeline.scheduler.sigmas[0])
    start = noise * math.sqrt(1 + sigma**2)
    options: dict[str, Any] = {
        "prompt": PROMPT,
        "negative_prompt": NEGATIVE,
        "num_inference_steps": STEPS,
        "guidance_scale": CFG,
        "output_type": "latent",
    }
    if family is Family.SDXL_REFINER:
        # This pipeline starts from a picture and adds sigma times the noise of the generator.
        options |= {"image": start - sigma * noise, "strength": 1.0}
        options["generator"] = torch.Generator().manual_seed(SEED)
    else:
        options |= {"height": 64, "width": 64}
        options["latents"] = start / float(pipeline.scheduler.init_noise_sigma)
    with torch.no_grad():
        found: Tensor = pipeline(**options).images
    return found / pipeline.vae.config.scaling_factor


def pipeline_of(family: Family, folder: Path) -> Any:
    """The pipeline that diffusers has for a family, with the models of a folder."""
    shared = _shared_components(folder)
    match family:
        case Family.SD2:
            return StableDiffusionPipeline(
                **shared,
                text_encoder=CLIPTextModel.from_pretrained(folder / "text_encoder"),
                tokenizer=_tokenizer(pad_token="!"),
                safety_checker=None,
                feature_extractor=None,
                requires_safety_checker=False,
            )
        case Family.SDXL:
            return StableDiffusionXLPipeline(
                **shared,
                text_encoder=CLIPTextModel.from_pretrained(folder / "text_encoder"),
                text_encoder_2=_projecting_encoder(folder),
                tokenizer=_tokenizer(),
                tokenizer_2=_tokenizer(pad_token="!"),
                add_watermarker=False,
            )
        case Family.SDXL_REFINER:
            return StableDiffusionXLImg2ImgPipeline(
                **shared,
                text_encoder=None,
                text_encoder_2=_projecting_encoder(folder),
                tokenizer=None,
                tokenizer_2=_tokenizer(pad_token="!"),
                requires_aesthetics_score=True,
                add_watermarker=False,
            )
    raise ValueError(family)


def _projecting_encoder(folder: Path) -> Any:
    return CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2")


def _shared_components(folder: Path) -> dict[str, Any]:
    return {
        "unet": UNet2DConditionModel.from_pretrained(folder / "unet"),
        "vae": AutoencoderKL.from_pretrained(folder / "vae"),
        "scheduler": EulerDiscreteScheduler.from_pretrained(
            folder / "scheduler", timestep_spacing="linspace", steps_offset=1
        ),
    }


def _tokenizer(**options: str) -> CLIPTokenizer:
    """CLIP's tokenizer; the encoders of open_clip take the padding "!", which is token 0."""
    return CLIPTokenizer.from_pretrained(TOKENIZER, model_max_length=77, **options)
