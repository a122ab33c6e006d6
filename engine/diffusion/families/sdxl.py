"""Stable Diffusion XL and its refiner (Podell et al. 2023, arXiv:2307.01952)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.families.family import Call
from engine.diffusion.families.unet import UNetFamily, has_sizes
from engine.diffusion.images.latents import PIXELS_PER_LATENT
from engine.diffusion.text.text_encoders import CLIP_G, SDXL_CLIP_L
from engine.diffusion.vision.unclip import class_labels
from engine.families import sdxl


class _SizeConditioned(UNetFamily):
    """Takes the pooled vector of a text, and the size conditioning of section 2.2."""

    scores: ClassVar[tuple[float, float] | None] = None
    """The aesthetic scores of a positive and a negative text, in the place of the target size."""

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:  # noqa: ARG002 - of those that it depends on
        pooled, time_ids = [], []
        for part in call.parts:
            assert part.condition.pooled is not None  # see `is_complete`
            pooled.append(part.condition.pooled.expand(part.count, -1))
            time_ids += [part.condition.size_conditioning] * part.count
        added = {
            "text_embeds": torch.cat(pooled).to(call.x.device, call.x.dtype),
            "time_ids": torch.tensor(time_ids, device=call.x.device),
        }
        return {"added_cond_kwargs": added}

    def is_complete(self, condition: Condition) -> bool:
        return condition.pooled is not None

    def with_size_conditioning(
        self, conditioning: Conditioning, latent: Tensor, *, negative: bool
    ) -> Conditioning:
        """That of `latent` (batch, 4, h, w), not cropped, for those texts that have none."""
        height, width = (float(side * PIXELS_PER_LATENT) for side in latent.shape[2:])
        size = (height, width)
        last = size if self.scores is None else (self.scores[negative],)
        whole = (*size, 0.0, 0.0, *last)
        return tuple(
            replace(each, size_conditioning=self._size_conditioning(each, whole))
            for each in conditioning
        )

    def _size_conditioning(
        self, condition: Condition, whole: tuple[float, ...]
    ) -> tuple[float, ...]:
        """That of the text, or `whole`. A text for the base model lacks the score that the refiner
        takes, and a text for the refiner lacks the target size that the base model takes.
        """
        given = condition.size_conditioning
        if given is None or len(given) == len(whole):
            return given or whole
        return (*given[:4], *(given[:2] if self.scores is None else whole[4:]))


class SDXL(_SizeConditioned):
    traits = sdxl.SDXL
    encoders = (("text_encoder", SDXL_CLIP_L), ("text_encoder_2", CLIP_G))
    sizes = "sdxl_base"

    def told_of_images(self, network: Any, condition: Condition, seed: int) -> Condition:  # noqa: ARG002 - of those that have labels
        """In the place of the whole text."""
        pooled = condition.pooled
        if not condition.unclip or pooled is None:
            return condition
        width = pooled.shape[1]
        labels = class_labels(condition.unclip, seed, width=2 * width)
        return replace(condition, pooled=labels[:, :width].to(pooled))

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return has_sizes(unet) and "text_encoder" in encoders


class Refiner(_SizeConditioned):
    traits = sdxl.SDXL_REFINER
    encoders = (("text_encoder_2", CLIP_G),)
    sizes = "sdxl_refiner"
    scores = (6.0, 2.5)
    """As diffusers and ComfyUI set them."""

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return has_sizes(unet) and "text_encoder" not in encoders
