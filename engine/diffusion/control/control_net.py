"""ControlNet: a picture that guides the denoising beside the text.

Zhang et al. 2023 (arXiv:2302.05543): a second network looks at the picture, and what it finds is
added to what the UNet hands from its way down to its way up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images
from engine.diffusion.images.resampling import resampled
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.errors import EngineError


@dataclass(frozen=True, slots=True, eq=False)
class Control:
    """A ControlNet with the picture that it is to look at."""

    network: Any
    hint: Images
    strength: float
    percent_range: tuple[float, float] = (0.0, 1.0)
    """The percent (0..1) of the timesteps where it starts and ends."""
    applies_to_uncond: bool = False
    """It applies to the negative conditioning too, unless that has a ControlNet of its own."""
    _sized: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def applies_at(self, sigma: float, levels: NoiseLevels) -> bool:
        start, end = (levels.percent_to_sigma(percent) for percent in self.percent_range)
        return end <= sigma <= start

    def hint_for(self, x: Tensor) -> Tensor:
        """(batch, 3, height, width) in pixels for latents `x`; several pictures take turns."""
        height, width = (side * PIXELS_PER_LATENT for side in x.shape[2:])
        if (height, width) not in self._sized:
            fitted = resampled(
                self.hint.movedim(-1, 1), width, height, method="nearest-exact", crop="center"
            )
            self._sized[height, width] = fitted.to(x.device)
        sized = self._sized[height, width]
        return sized[torch.arange(len(x), device=x.device) % len(sized)]


def residuals(
    controls: Sequence[Sequence[Control]],
    sizes: Sequence[int],
    *,
    x: Tensor,
    timesteps: Tensor,
    tokens: Tensor,
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    """What the ControlNets of a UNet call add to it, as arguments of the UNet; none without any.

    `controls` are those that apply to each row, `sizes` the latents in each; the others are what
    the UNet is given, `inputs` beside latents, times and tokens. A network is called once for all
    rows that it acts on.
    """
    if not any(controls):
        return {}
    extra: Mapping[str, Tensor] = inputs.get("added_cond_kwargs", {})
    rows = torch.arange(len(x), device=x.device).split(list(sizes))
    sums: list[Tensor] = []
    for network, those in _by_network(controls, rows).items():
        _require_same_text(network, tokens)
        at = torch.cat([places for _, places in those])
        dtype = next(network.parameters()).dtype
        found = network(
            x[at].to(dtype),
            timesteps[at],
            tokens[at].to(dtype),
            torch.cat([control.hint_for(x[places]) for control, places in those]).to(dtype),
            added_cond_kwargs={name: each[at] for name, each in extra.items()},
            return_dict=False,
        )
        strengths = torch.cat([torch.full((len(at), 1, 1, 1), c.strength) for c, at in those])
        parts = [_spread(part, strengths, at, like=x) for part in (*found[0], found[1])]
        sums = [a + b for a, b in zip(sums, parts, strict=True)] if sums else parts
    *down, middle = sums
    return {"down_block_additional_residuals": down, "mid_block_additional_residual": middle}


def _by_network(
    controls: Sequence[Sequence[Control]], rows: Sequence[Tensor]
) -> dict[Any, list[tuple[Control, Tensor]]]:
    """Each network's pictures, with the places of the latents that they guide."""
    tasks: defaultdict[Any, list[tuple[Control, Tensor]]] = defaultdict(list)
    for own, at in zip(controls, rows, strict=True):
        for control in own:
            tasks[control.network].append((control, at))
    return tasks


def _spread(part: Tensor, strengths: Tensor, at: Tensor, *, like: Tensor) -> Tensor:
    """Residuals of some rows among those of all, which get nothing."""
    scaled = (part * strengths.to(part)).to(like.dtype)
    return scaled.new_zeros(len(like), *part.shape[1:]).index_add_(0, at, scaled)


def _require_same_text(network: Any, tokens: Tensor) -> None:
    own, given = network.config.cross_attention_dim, tokens.shape[-1]
    if own != given:
        raise EngineError(
            "the ControlNet belongs to another kind of model: "
            f"it takes texts of width {own}, the model's are {given} wide"
        )
