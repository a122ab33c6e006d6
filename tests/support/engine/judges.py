"""What diffusers' own pipelines make of the tiny checkpoints, to compare ours with."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.graph.families import Family

PROMPT, NEGATIVE = "a red circle on a blue ground", "grey"
STEPS, CFG, SEED = 2, 5.0, 3
TOKENIZER = Path(__file__).parents[3] / "engine" / "diffusion" / "configs" / "tokenizer"


def latents_of(family: Family, folder: Path) -> Tensor:
    """(1, 4, 8, 8) in the scale that the VAE decodes, by Euler along diffusers' own sigmas."""
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
        # It starts from a picture, to which it adds sigma times the noise of the generator.
        options |= {"image": start - sigma * noise, "strength": 1.0}
        options["generator"] = torch.Generator().manual_seed(SEED)
    else:
        options |= {"height": 64, "width": 64}
        options["latents"] = start / float(pipeline.scheduler.init_noise_sigma)
    with torch.no_grad():
        found: Tensor = pipeline(**options).images
    return found / pipeline.vae.config.scaling_factor


def pipeline_of(family: Family, folder: Path) -> Any:
    """The pipeline that diffusers has for a family, of a folder's models."""
    from diffusers import (
        AutoencoderKL,
        EulerDiscreteScheduler,
        StableDiffusionPipeline,
        StableDiffusionXLImg2ImgPipeline,
        StableDiffusionXLPipeline,
        UNet2DConditionModel,
    )
    from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

    parts: dict[str, Any] = {
        "unet": UNet2DConditionModel.from_pretrained(folder / "unet"),
        "vae": AutoencoderKL.from_pretrained(folder / "vae"),
        "scheduler": EulerDiscreteScheduler.from_pretrained(
            folder / "scheduler", timestep_spacing="linspace", steps_offset=1
        ),
    }
    first = {} if family is Family.SDXL else {"pad_token": "!"}
    tokenizers = {
        "tokenizer": CLIPTokenizer.from_pretrained(TOKENIZER, model_max_length=77, **first),
        "tokenizer_2": CLIPTokenizer.from_pretrained(TOKENIZER, model_max_length=77, pad_token="!"),
    }
    if family is Family.SD2:
        return StableDiffusionPipeline(
            **parts,
            text_encoder=CLIPTextModel.from_pretrained(folder / "text_encoder"),
            tokenizer=tokenizers["tokenizer"],
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    parts |= tokenizers
    second = CLIPTextModelWithProjection.from_pretrained(folder / "text_encoder_2")
    if family is Family.SDXL:
        own = CLIPTextModel.from_pretrained(folder / "text_encoder")
        return StableDiffusionXLPipeline(
            **parts, text_encoder=own, text_encoder_2=second, add_watermarker=False
        )
    parts["tokenizer"] = None
    return StableDiffusionXLImg2ImgPipeline(
        **parts,
        text_encoder=None,
        text_encoder_2=second,
        requires_aesthetics_score=True,
        add_watermarker=False,
    )
