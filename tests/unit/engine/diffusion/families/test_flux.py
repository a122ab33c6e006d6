"""Flux.1 on tiny random weights, beside diffusers' own pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from transformers import PreTrainedTokenizerFast

from engine.diffusion.text.encoding import load_tokenizer
from tests.support.engine.transformer_graphs import decibels, flux_graph, latent_of, saving_latent
from tests.support.engine.workflows import Watched

STEPS = 4


def _pipeline(made: dict[str, Any]) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made["tokenizer_2"], pad_token="<pad>", eos_token="</s>"
    )
    pipeline = FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15
        ),
        vae=made["vae"],
        text_encoder=made["text_encoder"],
        tokenizer=load_tokenizer(),
        text_encoder_2=made["text_encoder_2"],
        tokenizer_2=tokenizer,
        transformer=made["transformer"],
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def test_latents_are_those_of_diffusers(
    start: Callable[..., Watched], flux: dict[str, Any]
) -> None:
    ours = start(saving_latent(flux_graph("a red square", guidance=2.5, steps=STEPS)))
    noise = torch.randn((1, 16, 8, 8), generator=torch.Generator().manual_seed(5))
    packed = FluxPipeline._pack_latents(noise, 1, 16, 8, 8)
    theirs = _pipeline(flux)(
        "a red square",
        height=64,
        width=64,
        num_inference_steps=STEPS,
        guidance_scale=2.5,
        max_sequence_length=256,
        latents=packed,
        output_type="latent",
    ).images
    wanted = FluxPipeline._unpack_latents(theirs, 64, 64, 8)
    assert decibels(latent_of(ours), wanted) > 90
