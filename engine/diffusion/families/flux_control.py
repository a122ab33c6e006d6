"""ControlNets of Flux.1, whose residuals are added to the blocks of the transformer.

A ControlNet has fewer blocks than the transformer, so each residual is added to several blocks.
The inputs that both networks need are made here, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.control_net import Control, added, scattered, takes_latents
from engine.diffusion.families.model_family import Call
from engine.diffusion.families.transformer import LatentFormat, padded_to_patches, patches_of
from engine.diffusion.host_copies import copied

_TIME_SCALE = 1000.0
_DOUBLE_BLOCKS, _SINGLE_BLOCKS = 19, 38
"""The numbers of blocks of the published models, over which residuals are distributed."""


def flux_residuals(network: Any, call: Call, latent: LatentFormat) -> dict[str, Any]:
    """Return the arguments by which the transformer adds the residuals of ControlNets.

    A ControlNet is called once for all rows with hints of one type and texts of one length.
    """
    if not any(part.controls for part in call.parts):
        return {}
    planes = padded_to_patches(call.x)
    rows = torch.arange(len(planes), device=planes.device).split(call.counts)
    groups: defaultdict[Any, list[tuple[Control, Tensor]]] = defaultdict(list)
    conditions: defaultdict[Any, list[Condition]] = defaultdict(list)
    for part, at in zip(call.parts, rows, strict=True):
        for control in part.controls:
            tokens = part.condition.tokens.shape[1]
            group = control.network, control.type, tokens
            groups[group].append((control, at))
            conditions[group] += [part.condition] * part.count
    doubles: list[Tensor] = []
    singles: list[Tensor] = []
    for group, uses in groups.items():
        control_net, number, _ = group
        at = torch.cat([places for _, places in uses])
        sigmas, own = call.times[at], conditions[group]
        with exact_times(control_net, sigmas, own) as guidance:
            found = control_net(
                **_inputs(control_net, planes[at], sigmas, own),
                controlnet_cond=_hints(control_net, uses, call.x, latent),
                controlnet_mode=None if number is None else torch.full_like(at, number)[:, None],
                guidance=guidance,
                return_dict=False,
            )
        placed = [
            [scattered(each, uses=uses, like=planes) for each in part or ()] for part in found
        ]
        by_block = partial(_by_block, is_cyclic=not takes_latents(control_net))
        if placed[0]:
            parts = by_block(placed[0], len(network.transformer_blocks), _DOUBLE_BLOCKS)
            doubles = added(doubles, parts)
        if placed[1]:
            parts = by_block(placed[1], len(network.single_transformer_blocks), _SINGLE_BLOCKS)
            singles = added(singles, parts)
    # The tokens of reference latents follow those of the latent and get no residuals.
    more = sum(patches_of(padded_to_patches(each)).shape[1] for each in call.references)
    doubles, singles = (
        [functional.pad(each, (0, 0, 0, more)) if more else each for each in sums]
        for sums in (doubles, singles)
    )
    return {
        "controlnet_block_samples": doubles or None,
        "controlnet_single_block_samples": singles or None,
    }


def _hints(
    control_net: Any, uses: Sequence[tuple[Control, Tensor]], x: Tensor, latent: LatentFormat
) -> Tensor:
    dtype = next(control_net.parameters()).dtype
    if takes_latents(control_net):
        hints = torch.cat([control.latent_hint_for(x[at]) for control, at in uses])
        return patches_of(padded_to_patches((hints - latent.shift) * latent.scale)).to(dtype)
    planes = padded_to_patches(x)
    hints = torch.cat([control.hint_for(planes[at]) for control, at in uses])
    return (hints * 2.0 - 1.0).to(dtype)


def _by_block(
    parts: Sequence[Tensor], blocks: int, published_blocks: int, *, is_cyclic: bool
) -> list[Tensor]:
    """Return the residual of each block.

    If `is_cyclic`, the residuals are used in turn. Otherwise each is used for several consecutive
    blocks.
    """
    repeats = -(-published_blocks // len(parts))
    return [
        parts[at % len(parts) if is_cyclic else min(at // repeats, len(parts) - 1)]
        for at in range(blocks)
    ]


def _inputs(
    control_net: Any, planes: Tensor, sigmas: Tensor, conditions: Sequence[Condition]
) -> dict[str, Any]:
    """Return the inputs of a ControlNet, without the hint. All texts have one length."""
    weight = next(control_net.parameters())
    texts = torch.cat([each.tokens for each in conditions]).to(weight)
    return {
        "hidden_states": patches_of(planes).to(weight),
        "encoder_hidden_states": texts,
        "pooled_projections": pooled_of(conditions).to(weight),
        "timestep": sigmas,
        "img_ids": copied(positions_of(*(side // 2 for side in planes.shape[2:])), weight.device),
        "txt_ids": torch.zeros(texts.shape[1], 3, device=weight.device),
    }


@contextmanager
def exact_times(
    network: Any, sigmas: Tensor, conditions: Sequence[Condition]
) -> Iterator[Tensor | None]:
    """Yield the guidance scales of rows, or None for a network without guidance.

    Within this context, the network embeds the sigmas and the scales in float32, and rows without a
    scale get none. By itself, diffusers would first round both to the type of the latents: from
    947.1 to 944 in bfloat16, for example.
    """
    has_guidance = network.config.guidance_embeds
    scales = [each.guidance or 0.0 for each in conditions] if has_guidance else []
    guidance = copied(torch.tensor(scales), sigmas.device) if has_guidance else None
    without = [each.guidance is None for each in conditions]
    embed = network.time_text_embed

    def exact(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        exact = [sigmas] if guidance is None else [sigmas, guidance]
        return (*(each * _TIME_SCALE for each in exact), inputs[-1])

    def zeroed(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
        is_without = copied(torch.tensor(without), output.device)
        return output.masked_fill(is_without[:, None], 0)

    hooks = [embed.register_forward_pre_hook(exact)]
    if has_guidance and any(without):
        hooks.append(embed.guidance_embedder.register_forward_hook(zeroed))
    try:
        yield guidance
    finally:
        for hook in hooks:
            hook.remove()


def pooled_of(conditions: Sequence[Condition]) -> Tensor:
    """Return the pooled vectors of the rows, (rows, width). `Flux.require_own` has checked them."""
    return torch.cat([each.pooled for each in conditions if each.pooled is not None])


def positions_of(down: int, across: int) -> Tensor:
    """Return (patches, 3): for each patch, 0, its row and its column."""
    rows, columns = torch.meshgrid(torch.arange(down), torch.arange(across), indexing="ij")
    return torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3).float()
