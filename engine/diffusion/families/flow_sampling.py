"""Adapts samplers for models that predict noise to flow models, as ComfyUI does.

For both kinds of model, the path from noise to picture is dx/dsigma = (x - x0) / sigma. Samplers
that only follow this path work unchanged. A sampler that adds noise assumes that x is x0 plus noise
of level sigma, but the x of a flow model is (1 - sigma) x0 + sigma noise. So some samplers have a
special form for flow models. Others work on y = x / (1 - sigma) instead. The noise level of y is
sigma / (1 - sigma), and the equations of the sampler's paper are valid for y. The rest run on x
unchanged. Their equations are not valid for flow models, but ComfyUI does the same, so the images
agree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from engine.diffusion.samplers.ancestral import ancestral_step
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.uni_pc import LAST_SIGMA
from engine.errors import EngineError

_FIRST_FRACTION = 1e-4
"""The fraction of the timesteps whose sigma replaces a sigma of 1, which has no finite level."""
_ON_LEVELS = {
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_heun",
    "dpmpp_3m_sde",
    "er_sde",
    "exp_heun_2_x0",
    "exp_heun_2_x0_sde",
    "restart",
    "sa_solver",
    "sa_solver_pece",
    "seeds_2",
    "seeds_3",
    "webui_dpm_adaptive",
    "webui_dpm_fast",
    "webui_dpmpp_3m_sde",
}
"""Samplers that work on y."""


def require_flow_sigmas(sigmas: Tensor) -> None:
    """Raise EngineError for sigmas above 1, which no flow model has."""
    if bool((sigmas > 1.0 + 1e-6).any()):
        raise EngineError(
            "the sigmas of this model are from 0 to 1, but the schedule contains "
            f"{float(sigmas.max()):g}: use a schedule that is made for the model, such as "
            "BasicScheduler"
        )


def levels_of(sigmas: Tensor) -> Tensor:
    """Return the noise levels of y in float64, so that `sigmas_of` gives exactly these sigmas."""
    exact = sigmas.double()
    return exact / (1 - exact)


def sigmas_of(levels: Tensor) -> Tensor:
    return (levels / (1 + levels)).float()


def below_one(sigmas: Tensor, levels: NoiseLevels) -> Tensor:
    """Replace a sigma of 1 by the slightly smaller sigma of an early timestep."""
    return torch.where(sigmas >= 1, levels.percent_to_sigma(_FIRST_FRACTION), sigmas)


def run_on_levels(
    sampler: Callable[..., Sampling], levels: NoiseLevels, x: Tensor, sigmas: Tensor, **options: Any
) -> Sampling:
    """Run `sampler` on y = x / (1 - sigma), with the noise levels of y instead of `sigmas`."""
    if noise := options.get("noise_sampler"):
        options["noise_sampler"] = lambda a, b: noise(sigmas_of(a), sigmas_of(b))
    if interval := options.get("interval"):
        options["interval"] = tuple(sigma / (1 - sigma) for sigma in interval)
    y_levels = levels_of(below_one(sigmas, levels))
    steps = sampler(x * (1 + y_levels[0]), y_levels, **options)
    try:
        y, level = next(steps)
        while True:
            x0 = yield y / (1 + level), sigmas_of(level)
            y, level = steps.send(x0)
    except StopIteration as stop:
        end: Tensor = stop.value
        return end / (1 + y_levels[-1])


def for_flow(
    name: str, sampler: Callable[..., Sampling], levels: NoiseLevels
) -> Callable[..., Sampling]:
    """Return the form of the sampler of that name for flow models with these levels."""
    if name == "dpmpp_sde":
        return partial(dpmpp_sde, levels)
    if name in _ON_LEVELS:
        return partial(run_on_levels, sampler, levels)
    if name in {"uni_pc", "uni_pc_bh2"}:
        return partial(_ended_above_zero, sampler)
    return _FLOW_SAMPLERS.get(name, sampler)


def _ended_above_zero(sampler: Callable[..., Sampling], x: Tensor, sigmas: Tensor) -> Sampling:
    """Run UniPC, and treat its end as a latent at `LAST_SIGMA` instead of 0."""
    end = yield from sampler(x, sigmas)
    return end / (1 - LAST_SIGMA) if sigmas[-1] == 0 else end


def _step_down(sigma: Tensor, sigma_next: Tensor, eta: float) -> Tensor:
    """Return the sigma to which a step denoises before it adds noise for `sigma_next`."""
    return sigma_next * (1 + eta * (sigma_next / sigma - 1))


def _renoised(
    x: Tensor, sigma_down: Tensor, sigma_next: Tensor, noise: Callable[[], Tensor]
) -> Tensor:
    """Scale x so that the share of x0 is 1 - sigma_next, and add noise for `sigma_next`."""
    scale = (1 - sigma_next) / (1 - sigma_down)
    variance = sigma_next**2 - (scale * sigma_down) ** 2
    return scale * x + variance.clamp(min=0).sqrt() * noise()


def euler_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """Sample a flow model with Euler steps that go below the next sigma, and add new noise."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        sigma_down = _step_down(sigma, sigma_next, eta)
        x = x0 + (x - x0) * sigma_down / sigma
        if sigma_next > 0 and eta > 0:
            x = _renoised(x, sigma_down, sigma_next, partial(noise_sampler, sigma, sigma_next))
    return x


def dpm_2_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """`euler_ancestral` with the slope at the geometric mean of both ends of a step."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        d = (x - x0) / sigma
        sigma_down = _step_down(sigma, sigma_next, eta)
        if sigma_down > 0:
            sigma_mid = sigma.log().lerp(sigma_down.log(), 0.5).exp()
            x_mid = x + d * (sigma_mid - sigma)
            x0 = yield x_mid, sigma_mid
            d = (x_mid - x0) / sigma_mid
        x = x + d * (sigma_down - sigma)
        if sigma_next > 0 and eta > 0:
            x = _renoised(x, sigma_down, sigma_next, partial(noise_sampler, sigma, sigma_next))
    return x


def dpmpp_2s_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """`euler_ancestral` with x0 at the mean of the log-SNRs of both ends of a step."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        sigma_down = _step_down(sigma, sigma_next, eta)
        if sigma_down > 0:
            sigma_mid = ((sigma.logit() + sigma_down.logit()) / 2).sigmoid()
            if sigma == 1:
                sigma_mid = sigma.new_tensor(_MID_AFTER_ONE)
            x_mid = x0 + (x - x0) * sigma_mid / sigma
            x0 = yield x_mid, sigma_mid
        x = x0 + (x - x0) * sigma_down / sigma
        if sigma_next > 0 and eta > 0:
            x = _renoised(x, sigma_down, sigma_next, partial(noise_sampler, sigma, sigma_next))
    return x


_MID_AFTER_ONE = 0.9999
"""The middle of a step from a sigma of 1, where the log-SNR is infinite."""


def lcm(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """Multistep consistency sampling (Luo et al. 2023, arXiv:2310.04378, algorithm 3)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = x0
        if sigma_next > 0:
            x = (1 - sigma_next) * x0 + sigma_next * noise_sampler(sigma, sigma_next)
    return x


def euler_cfg_pp(x: Tensor, sigmas: Tensor) -> Sampling:
    """CFG++ (Chung et al. 2024, arXiv:2406.08070, algorithm 2) with the unconditional noise."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        x = (1 - sigma_next) * x0 + sigma_next * _noise_in(x, x0_uncond, sigma)
    return x


def euler_ancestral_cfg_pp(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`euler_cfg_pp` with ancestral steps of y."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        noise = _noise_in(x, x0_uncond, sigma)
        if sigma_next > 0:
            kept = (sigma_next / (1 - sigma_next)) / (sigma / (1 - sigma))
            noise = kept * noise + (1 - kept**2).sqrt() * noise_sampler(sigma, sigma_next)
        x = (1 - sigma_next) * x0 + sigma_next * noise
    return x


def _noise_in(x: Tensor, x0: Tensor, sigma: Tensor) -> Tensor:
    return (x - (1 - sigma) * x0) / sigma


def dpmpp_sde(
    levels: NoiseLevels,
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: NoiseSampler,
    *,
    eta: float = 1.0,
) -> Sampling:
    """SDE-DPM-Solver++ in single steps, r = 1/2 (Lu et al. 2022, arXiv:2211.01095, section 5).

    The sampler works on y, but finds the middle of a step in sigma. The middle must be exact,
    because it is a point of the Brownian path.
    """

    def stepped(x0: Tensor, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        level, level_next = levels_of(sigma), levels_of(sigma_next)
        down, up = ancestral_step(level, level_next, eta)
        y = down / level * (1 + level) * x + (1 - down / level) * x0
        return (y + up * noise_sampler(sigma, sigma_next)) / (1 + level_next)

    for sigma, sigma_next in pairwise(below_one(sigmas, levels)):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        start, end = -sigma.logit(), -sigma_next.logit()
        sigma_mid = (-(start + (end - start) / 2)).sigmoid()
        x0 = yield stepped(x0, sigma, sigma_mid), sigma_mid
        x = stepped(x0, sigma, sigma_next)
    return x


_FLOW_SAMPLERS: dict[str, Callable[..., Sampling]] = {
    each.__name__: each
    for each in (
        dpm_2_ancestral,
        dpmpp_2s_ancestral,
        euler_ancestral,
        euler_ancestral_cfg_pp,
        euler_cfg_pp,
        lcm,
    )
}
"""Samplers that have a special form for flow models, by name."""
