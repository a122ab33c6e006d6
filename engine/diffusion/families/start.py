"""The latent that sampling starts from, by what the model takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.families.flow_sampling import require_flow_sigmas
from engine.diffusion.images.latents import Latent
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.errors import EngineError
from engine.graph.names import Sampler
from engine.webui.sampler_names import follows_timesteps

NoiseScale: TypeAlias = Literal["comfyui", "sigma", "unit variance"]
"""What the noise of the start is multiplied with: the first sigma, or what gives a latent of unit
variance after `Model.scaled_input`. ComfyUI does the latter at the model's largest sigma alone. A
flow model has one way."""


def own_latent(latent: Latent, model: Model, sigmas: Tensor, row: Sampler) -> Latent:
    """The latent with as many channels as the model's; raises EngineError where it has others.

    An empty one has no content that would be lost. Raises EngineError also for a schedule or a
    sampler that a flow model cannot be sampled with.
    """
    _require_schedule(model, sigmas, row)
    batch, channels, *sides = latent.samples.shape
    if channels == model.latent_channels:
        return latent
    if latent.samples.any():
        raise EngineError(
            f"the latent has {channels} channels, and the model ({model.family}) takes "
            f"{model.latent_channels}: encode the image with the VAE of the model"
        )
    return replace(latent, samples=torch.zeros(batch, model.latent_channels, *sides))


def _require_schedule(model: Model, sigmas: Tensor, row: Sampler) -> None:
    if not model.levels.is_flow:
        if model.family.predicts_flow:
            raise EngineError(
                f"{model.family.traits.title} predicts a flow, and what it is said to predict or "
                "its noise levels are those of other models: leave out the ModelSampling node"
            )
        return
    require_flow_sigmas(sigmas)
    if follows_timesteps(row):
        raise EngineError(f"{row.label} follows the timesteps of Stable Diffusion")
    if model.guidance_rescale:
        raise EngineError("RescaleCFG is for models that predict noise, and not for flow models")


def noised(
    clean: Tensor, noise: Tensor, sigma: Tensor, *, levels: NoiseLevels, scale: NoiseScale
) -> Tensor:
    """A clean latent with the noise of the start."""
    if levels.is_flow:
        return levels.noised(clean, noise, sigma)
    return clean + noise * _factor(scale, sigma, levels)


def _factor(scale: NoiseScale, sigma: Tensor, levels: NoiseLevels) -> Tensor:
    has_unit_variance = scale == "unit variance"
    if scale == "comfyui":
        has_unit_variance = bool(
            sigma > levels.sigma_max or torch.isclose(sigma, levels.sigma_max, rtol=1e-5)
        )
    return (1 + sigma**2).sqrt() if has_unit_variance else sigma
