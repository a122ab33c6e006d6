"""Rules of guidance beyond classifier-free guidance: rescaling, and a third conditioning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from engine.diffusion.conditioning.condition import Conditioning


def rescaled_cfg(x0: Tensor, x0_cond: Tensor, *, x: Tensor, sigma: Tensor, phi: float) -> Tensor:
    """Return the guided x0 (batch, channels, h, w) with a rescaled velocity.

    The velocity is rescaled to the standard deviation of the conditional velocity, as in Lin et al.
    2023 (arXiv:2305.08891), section 3.4. `phi`, from 0 to 1, is the share of the rescaled velocity
    in the result. A common factor of both velocities is left out, because it would cancel out.
    """
    origin = x / (float(sigma) ** 2 + 1)
    v_cond, v_cfg = origin - x0_cond, origin - x0
    ratio = v_cond.std((1, 2, 3), keepdim=True) / v_cfg.std((1, 2, 3), keepdim=True)
    return origin - v_cfg * (phi * ratio + 1 - phi)


@dataclass(frozen=True, slots=True)
class DualCfg:
    """Guides x0 from the negative text to the second text, and then to the first text.

    This is equation 3 of Brooks et al. 2023 (arXiv:2211.09800). `cfg` scales the first of these two
    steps, and `scale` the second. If `is_nested`, the second step is made first, and `cfg` scales
    the step from the negative text to its result.
    """

    scale: float
    is_nested: bool = False

    def guided(self, cond: Tensor, uncond: Tensor, second: Tensor, cfg: float) -> Tensor:
        """Return x0 from the x0s of the text, the negative text and the second text."""
        if self.is_nested:
            both = second + (cond - second) * self.scale
            return uncond + (both - uncond) * cfg
        return uncond + (second - uncond) * cfg + (cond - second) * self.scale


@dataclass(frozen=True, slots=True)
class PerpNeg:
    """Guides away only from the part of the negative text that is perpendicular to the text.

    This is equation 8 of Armandpour et al. 2023 (arXiv:2304.04968). The third conditioning is the
    conditioning of an empty text.
    """

    scale: float

    def guided(self, cond: Tensor, uncond: Tensor, empty: Tensor, cfg: float) -> Tensor:
        """Return x0 from the x0s of the text, the negative text and the empty text.

        As in ComfyUI, the projection treats the whole batch as one vector.
        """
        towards, away = cond - empty, uncond - empty
        along = (away * towards).sum() / towards.square().sum().clamp(min=_LEAST)
        return empty + (towards - (away - towards * along) * self.scale) * cfg


_LEAST = 1e-37
"""The smallest divisor. With 0, a prompt that equals the empty prompt would give 0/0."""
Rule: TypeAlias = DualCfg | PerpNeg
"""A rule that computes the guided x0 from three conditionings."""


@dataclass(frozen=True, slots=True, eq=False)
class ThirdConditioning:
    conditioning: Conditioning
    rule: Rule
