"""Guidance by three conditionings, where a graph asks for another rule than classifier-free's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from engine.diffusion.conditioning.condition import Conditioning


@dataclass(frozen=True, slots=True)
class DualCfg:
    """Towards a text from a second one, and towards that from the negative.

    Brooks et al. 2023 (arXiv:2211.09800), equation 3: the scale of guidance is that of the second
    text, and `scale` that of the first. `is_nested` guides to what the first text gives instead.
    """

    scale: float
    is_nested: bool = False

    def guided(self, cond: Tensor, uncond: Tensor, second: Tensor, cfg: float) -> Tensor:
        """x0 (batch, 4, h, w) from those of the text, of the negative and of the second text."""
        if self.is_nested:
            both = second + (cond - second) * self.scale
            return uncond + (both - uncond) * cfg
        return uncond + (second - uncond) * cfg + (cond - second) * self.scale


@dataclass(frozen=True, slots=True)
class PerpNeg:
    """Away from that part of the negative alone that is perpendicular to the text.

    Armandpour et al. 2023 (arXiv:2304.04968), equation 8. The third conditioning is empty.
    """

    scale: float

    def guided(self, cond: Tensor, uncond: Tensor, empty: Tensor, cfg: float) -> Tensor:
        """x0 (batch, 4, h, w) from those of the text, of the negative and of the empty text.

        As in ComfyUI, a whole batch is one vector.
        """
        towards, away = cond - empty, uncond - empty
        along = (away * towards).sum() / towards.square().sum().clamp(min=_LEAST)
        return empty + (towards - (away - towards * along) * self.scale) * cfg


_LEAST = 1e-37
"""Of a text that is the empty one, nothing is along it."""
Rule: TypeAlias = DualCfg | PerpNeg
"""How x0 is guided by three conditionings."""


@dataclass(frozen=True, slots=True, eq=False)
class Third:
    """A third conditioning, and how it guides."""

    conditioning: Conditioning
    rule: Rule
