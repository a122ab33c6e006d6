"""Guidance rescale: it takes back the contrast that classifier-free guidance adds."""

from __future__ import annotations

from torch import Tensor


def rescaled_cfg(x0: Tensor, x0_cond: Tensor, *, x: Tensor, sigma: Tensor, phi: float) -> Tensor:
    """The guided x0 (batch, 4, h, w), its velocity rescaled to the spread of the conditional one.

    Lin et al. 2023 (arXiv:2305.08891), section 3.4: `phi`, from 0 to 1, is the share of the
    rescaled velocity in the result. The velocities here lack a factor that both have in common.
    """
    origin = x / (float(sigma) ** 2 + 1)
    v_cond, v_cfg = origin - x0_cond, origin - x0
    ratio = v_cond.std((1, 2, 3), keepdim=True) / v_cfg.std((1, 2, 3), keepdim=True)
    return origin - v_cfg * (phi * ratio + 1 - phi)
