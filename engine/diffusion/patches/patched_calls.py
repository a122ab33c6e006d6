"""The model calls of a patched model: with the UNet of each sigma, and those that guide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.denoise import Denoise
from engine.diffusion.model import Model
from engine.diffusion.patches.call_draws import CallDraws
from engine.diffusion.patches.self_guidance import perturb, watch
from engine.diffusion.patches.variants import variant_of
from engine.errors import EngineError


def patched_by_sigma(model: Model, generator: torch.Generator) -> Callable[[float], Model]:
    """The model with the UNets that it has at a sigma, for the next call at it. What is returned
    keeps them in memory. What the patches draw goes on where the `generator` is now.
    """
    if model.fewer is None:
        return _unet_by_sigma(model)
    unet = variant_of(model.unet, model.fewer, model.fewer.patch)
    patched = _unet_by_sigma(replace(model, unet=unet))
    own, calls = torch.Generator().set_state(generator.get_state()), count()
    return lambda sigma: replace(patched(sigma), draws=CallDraws(next(calls), own))


def _unet_by_sigma(model: Model) -> Callable[[float], Model]:
    if model.self_attention is not None:
        model = replace(model, unet=variant_of(model.unet, "watched", watch))
    plain, shrink = _with_perturbed(model), model.shrink
    if shrink is None:
        return lambda _sigma: plain
    most, least = map(model.levels.percent_to_sigma, shrink.percent_range)
    shrunk = replace(model, unet=variant_of(model.unet, shrink, shrink.patch))
    shrunk = _with_perturbed(shrunk)
    return lambda sigma: shrunk if least <= sigma <= most else plain


def _with_perturbed(model: Model) -> Model:
    if not model.perturbed_attention:
        return model
    return replace(model, perturbed_unet=variant_of(model.unet, "perturbed", perturb))


def is_self_guided(model: Model) -> bool:
    """Whether `guided_x0` makes more calls than one."""
    return model.self_attention is not None or model.perturbed_attention != 0


def guided_x0(request: Denoise) -> Work[Tensor]:
    """The result of a model call, guided by the model itself as well."""
    result: Tensor = yield request
    if not request.needs_parts:
        return result
    x0, *parts = result
    if request.model.perturbed_attention and request.conditionings[0]:
        x0 = x0 + (yield from _from_perturbed(request, parts[0]))
    if request.model.self_attention is not None and request.conditionings[1]:
        x0 = x0 + (yield from _from_blurred(request, parts[1]))
    return torch.stack([x0, parts[1]]) if request.needs_uncond else x0


def _from_perturbed(request: Denoise, x0_cond: Tensor) -> Work[Tensor]:
    """What perturbed-attention guidance adds: Ahn et al. 2024 (arXiv:2403.17377), equation 14."""
    model = request.model
    perturbed = replace(model, unet=model.perturbed_unet, self_attention=None)
    x0: Tensor = yield request.with_one(request.cond, model=perturbed, x=request.x)
    return (x0_cond - x0) * model.perturbed_attention


def _from_blurred(request: Denoise, x0_uncond: Tensor) -> Work[Tensor]:
    """What self-attention guidance adds: Hong et al. 2023 (arXiv:2210.00939), equation 16."""
    guidance, attended = request.model.self_attention, request.attended
    is_whole = len(request.conditionings[1]) == 1 and request.conditionings[1][0].area is None
    if not is_whole or attended is None or guidance is None:
        raise EngineError("self-attention guidance takes one negative text, for the whole image")
    if not guidance.suits(x0_uncond):
        return torch.zeros_like(x0_uncond)
    degraded = guidance.degraded(x0_uncond, attended)
    model = replace(request.model, self_attention=None)
    x = degraded + request.x - x0_uncond
    x0: Tensor = yield request.with_one(request.uncond, model=model, x=x)
    return (degraded - x0) * guidance.scale
