"""The function of each sampler in `engine.graph.names`, and the noise that it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from engine.diffusion.samplers import ancestral, dpm_solver, multistep, sa_solver, uni_pc
from engine.diffusion.samplers import runge_kutta as samplers
from engine.diffusion.samplers import sde as sde_samplers
from engine.diffusion.samplers.noise import NoiseSampler, brownian_noise, independent_noise
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.graph import names

Sampler: TypeAlias = Callable[[Tensor, Tensor], Sampling]
NoisySampler: TypeAlias = Callable[[Tensor, Tensor, NoiseSampler], Sampling]

SAMPLERS: dict[str, Sampler] = {
    "euler": samplers.euler,
    "euler_cfg_pp": samplers.euler_cfg_pp,
    "heun": samplers.heun,
    "heunpp2": samplers.heunpp2,
    "dpm_2": samplers.dpm_2,
    "lms": multistep.lms,
    "dpm_fast": dpm_solver.dpm_fast,
    "dpm_adaptive": dpm_solver.dpm_adaptive,
    "dpmpp_2m": multistep.dpmpp_2m,
    "dpmpp_2m_cfg_pp": multistep.dpmpp_2m_cfg_pp,
    "ipndm": multistep.ipndm,
    "ipndm_v": multistep.ipndm_v,
    "deis": multistep.deis,
    "ddim": samplers.euler,
    "uni_pc": uni_pc.uni_pc,
    "uni_pc_bh2": uni_pc.uni_pc_bh2,
    "res_multistep": multistep.res_multistep,
    "res_multistep_cfg_pp": multistep.res_multistep_cfg_pp,
    "gradient_estimation": multistep.gradient_estimation,
    "gradient_estimation_cfg_pp": multistep.gradient_estimation_cfg_pp,
}
"""ddim is Euler's method: Song et al. 2020 (arXiv:2010.02502), equation 14."""
NOISY_SAMPLERS: dict[str, NoisySampler] = {
    "euler_ancestral": ancestral.euler_ancestral,
    "euler_ancestral_cfg_pp": ancestral.euler_ancestral_cfg_pp,
    "dpm_2_ancestral": ancestral.dpm_2_ancestral,
    "dpmpp_2s_ancestral": ancestral.dpmpp_2s_ancestral,
    "dpmpp_2s_ancestral_cfg_pp": ancestral.dpmpp_2s_ancestral_cfg_pp,
    "lcm": ancestral.lcm,
    "ddpm": ancestral.ddpm,
    "dpmpp_sde": sde_samplers.dpmpp_sde,
    "dpmpp_2m_sde": sde_samplers.dpmpp_2m_sde,
    "dpmpp_2m_sde_heun": sde_samplers.dpmpp_2m_sde_heun,
    "dpmpp_3m_sde": sde_samplers.dpmpp_3m_sde,
    "er_sde": sde_samplers.er_sde,
    "seeds_2": sde_samplers.seeds_2,
    "seeds_3": sde_samplers.seeds_3,
    "sa_solver": sa_solver.sa_solver,
    "sa_solver_pece": sa_solver.sa_solver_pece,
    "res_multistep_ancestral": multistep.res_multistep_ancestral,
    "res_multistep_ancestral_cfg_pp": multistep.res_multistep_ancestral_cfg_pp,
}


def sampling_of(
    name: str, x: Tensor, sigmas: Tensor, *, seed: int, step_seed: int | None = None
) -> Sampling:
    """The sampler of that name at its start.

    `seed` is of Brownian paths, and of independent draws too unless `step_seed` is given.
    """
    match names.SAMPLER_OF[name].noise:
        case "none":
            return SAMPLERS[name](x, sigmas)
        case "independent":
            return NOISY_SAMPLERS[name](
                x, sigmas, independent_noise(x, seed if step_seed is None else step_seed)
            )
        case "brownian":
            return NOISY_SAMPLERS[name](x, sigmas, brownian_noise(x, sigmas, seed))
