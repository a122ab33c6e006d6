"""ControlNet: a picture that guides the denoising together with the text.

As in Zhang et al. 2023 (arXiv:2302.05543), the picture is the input of a second network. The
outputs of this network are added to the skip connections and to the middle block of the UNet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from diffusers import T2IAdapter
from torch import Tensor

from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images
from engine.diffusion.images.resampling import resampled
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A ControlNet or a T2I adapter with its input picture, which is called the hint."""

    network: Any
    hint: Images
    strength: float
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The start and the end of the control, as fractions (0..1) of the timesteps."""
    applies_to_uncond: bool = False
    """Whether `with_shared_controls` applies the control to the negative conditioning too."""
    _resized: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The hint as (n, 3, height, width), by height and width."""

    def applies_at(self, sigma: float, levels: NoiseLevels) -> bool:
        start, end = (levels.percent_to_sigma(percent) for percent in self.percent_range)
        return end <= sigma <= start

    def hint_for(self, x: Tensor) -> Tensor:
        """Return the hint (batch, 3, height, width), resized to the pictures of the latents `x`.

        If the hint has several pictures, the latents use these pictures in turn.
        """
        height, width = (side * PIXELS_PER_LATENT for side in x.shape[2:])
        if (height, width) not in self._resized:
            resized = resampled(
                self.hint.movedim(-1, 1), width, height, method="nearest-exact", crop="center"
            )
            self._resized[height, width] = resized.to(x.device)
        hints = self._resized[height, width]
        return hints[torch.arange(len(x), device=x.device) % len(hints)]


def residuals(
    controls: Sequence[Sequence[Control]],
    sizes: Sequence[int],
    *,
    x: Tensor,
    timesteps: Tensor,
    tokens: Tensor,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the arguments by which a UNet adds the residuals of ControlNets and T2I adapters.

    `controls` and `sizes` have the controls and the number of rows of each part of the UNet call.
    The other parameters are the arguments of the UNet: the latents `x`, the texts `tokens`, the
    `timesteps`, and all others in `inputs`. Each network is called once for all its rows.
    """
    if not any(controls):
        return {}
    extra: Mapping[str, Tensor] = inputs.get("added_cond_kwargs", {})
    rows = torch.arange(len(x), device=x.device).split(list(sizes))
    sums: list[Tensor] = []
    inside: list[Tensor] = []
    for network, uses in _by_network(controls, rows).items():
        at = torch.cat([places for _, places in uses])
        dtype = next(network.parameters()).dtype
        hints = torch.cat([control.hint_for(x[places]) for control, places in uses]).to(dtype)
        scattered = partial(_scattered, strengths=_strengths(uses), at=at, like=x)
        if isinstance(network, T2IAdapter):
            inside = _added(inside, map(scattered, _features(network, hints)))
            continue
        _require_same_text(network, tokens)
        found = network(
            x[at].to(dtype),
            timesteps[at],
            tokens[at].to(dtype),
            hints,
            added_cond_kwargs={name: each[at] for name, each in extra.items()},
            return_dict=False,
        )
        sums = _added(sums, map(scattered, (*found[0], found[1])))
    return _arguments(sums, inside)


def _arguments(sums: list[Tensor], inside: list[Tensor]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if inside:
        found["down_intrablock_additional_residuals"] = inside
    if sums:
        *down, middle = sums
        found |= {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}
    return found


def _features(network: Any, hints: Tensor) -> list[Tensor]:
    """Return the features for each level of the UNet. Some adapters need grey pictures."""
    if network.config.in_channels == 1:
        hints = hints.mean(1, keepdim=True)
    found: list[Tensor] = network(hints)
    return found


def _added(sums: list[Tensor], parts: Iterable[Tensor]) -> list[Tensor]:
    return [a + b for a, b in zip(sums, parts, strict=True)] if sums else list(parts)


def _strengths(uses: Sequence[tuple[Control, Tensor]]) -> Tensor:
    return torch.cat([torch.full((len(at), 1, 1, 1), each.strength) for each, at in uses])


def _by_network(
    controls: Sequence[Sequence[Control]], rows: Sequence[Tensor]
) -> dict[Any, list[tuple[Control, Tensor]]]:
    """Return the controls of each network, each with the indices of its rows."""
    tasks: defaultdict[Any, list[tuple[Control, Tensor]]] = defaultdict(list)
    for own, at in zip(controls, rows, strict=True):
        for control in own:
            tasks[control.network].append((control, at))
    return tasks


def _scattered(part: Tensor, strengths: Tensor, at: Tensor, *, like: Tensor) -> Tensor:
    """Return residuals for all rows: scaled `part` at the indices `at`, and zeros elsewhere."""
    scaled = (part * strengths.to(part)).to(like.dtype)
    return scaled.new_zeros(len(like), *part.shape[1:]).index_add_(0, at, scaled)


def _require_same_text(network: Any, tokens: Tensor) -> None:
    own, given = network.config.cross_attention_dim, tokens.shape[-1]
    if own != given:
        raise EngineError(
            f"the ControlNet is for another kind of model: it needs texts of width {own}, but the "
            f"texts of this model have width {given}"
        )
