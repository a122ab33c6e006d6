"""Z-Image on tiny random weights, beside diffusers' own pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline
from transformers import PreTrainedTokenizerFast

from tests.support.engine.transformer_graphs import (
    decibels,
    latent_of,
    saving_latent,
    z_image_graph,
)
from tests.support.engine.workflows import Watched

_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STEPS, SHIFT = 4, 3.0


def _pipeline(made: dict[str, Any]) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made["tokenizer"], chat_template=_CHAT, pad_token="<|endoftext|>"
    )
    pipeline = ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=SHIFT),
        vae=made["vae"],
        text_encoder=made["text_encoder"],
        tokenizer=tokenizer,
        transformer=made["transformer"],
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_latents_are_those_of_diffusers(
    start: Callable[..., Watched], z_image: dict[str, Any]
) -> None:
    ours = start(
        saving_latent(z_image_graph("a red square", negative="blue", cfg=3.0, steps=STEPS))
    )
    noise = torch.randn((1, 16, 8, 8), generator=torch.Generator().manual_seed(5))
    theirs = _pipeline(z_image)(
        "a red square",
        negative_prompt="blue",
        height=64,
        width=64,
        num_inference_steps=STEPS,
        guidance_scale=2.0,  # it counts from the conditional estimate
        latents=noise,
        output_type="latent",
    ).images
    assert decibels(latent_of(ours), theirs) > 90
