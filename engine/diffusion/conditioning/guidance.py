"""What is made of the model's two answers."""

from __future__ import annotations

from torch import Tensor


def rescaled(
    guided: Tensor, conditional: Tensor, shown: tuple[Tensor, Tensor], share: float
) -> Tensor:
    """x0 whose velocity has the spread of the conditional one's, to a share of 0..1.

    Lin et al. 2023 (arXiv:2305.08891), section 3.4. `shown` is x (batch, 4, h, w) with its sigma.
    A velocity is the distance from this middle, times a factor that is the same for both.
    """
    x, sigma = shown
    middle = x / (float(sigma) ** 2 + 1)
    wanted, found = (middle - x0 for x0 in (conditional, guided))
    ratio = wanted.std((1, 2, 3), keepdim=True) / found.std((1, 2, 3), keepdim=True)
    return middle - found * (share * ratio + 1 - share)
