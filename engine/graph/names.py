"""Samplers and schedulers, and the spellings that callers use for them.

A sampler or scheduler is one row here and one function in `engine.diffusion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AUTOMATIC = "Automatic"
"""The WebUI's name for the scheduler that is the default of a sampler."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """`name` is ComfyUI's spelling, `label` WebUI's."""

    name: str
    label: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampler:
    """`name` is ComfyUI's spelling, `label` WebUI's; `automatic` is what "Automatic" stands for.

    `noise` is what the sampler adds on its way: independent draws, or increments of one Brownian
    path. `discards_penultimate_sigma`: its schedules leave out their last sigma above 0.
    `own_schedule`: it chooses its own sigmas between the ends of a schedule. `own_mask_noise`: the
    part that a noise mask keeps gets other noise than the start. `needs_uncond`: it needs the
    unconditional x0 beside the guided one.
    """

    name: str
    label: str
    automatic: str = "normal"
    aliases: tuple[str, ...] = ()
    noise: Literal["none", "independent", "brownian"] = "none"
    discards_penultimate_sigma: bool = False
    own_schedule: bool = False
    own_mask_noise: bool = False
    needs_uncond: bool = False


SCHEDULERS = (
    Scheduler("normal", "Normal", aliases=("Uniform",)),
    Scheduler("karras", "Karras"),
    Scheduler("exponential", "Exponential"),
    Scheduler("sgm_uniform", "SGM Uniform"),
    Scheduler("simple", "Simple"),
    Scheduler("ddim_uniform", "DDIM", aliases=("DDIM Uniform",)),
    Scheduler("beta", "Beta"),
    Scheduler("linear_quadratic", "Linear Quadratic"),
    Scheduler("kl_optimal", "KL Optimal"),
)
SAMPLERS = (
    Sampler("euler", "Euler", aliases=("k_euler",)),
    Sampler(
        "euler_ancestral",
        "Euler a",
        aliases=("k_euler_a", "k_euler_ancestral"),
        noise="independent",
    ),
    Sampler("euler_cfg_pp", "Euler CFG++", needs_uncond=True),
    Sampler("euler_ancestral_cfg_pp", "Euler a CFG++", noise="independent", needs_uncond=True),
    Sampler("heun", "Heun", aliases=("k_heun",)),
    Sampler("heunpp2", "Heun++ 2"),
    Sampler("dpm_2", "DPM2", "karras", ("k_dpm_2",), discards_penultimate_sigma=True),
    Sampler(
        "dpm_2_ancestral",
        "DPM2 a",
        "karras",
        ("k_dpm_2_a", "k_dpm_2_ancestral"),
        noise="independent",
        discards_penultimate_sigma=True,
    ),
    Sampler("lms", "LMS", aliases=("k_lms",)),
    Sampler("dpm_fast", "DPM fast", aliases=("k_dpm_fast",), own_schedule=True),
    Sampler(
        "dpm_adaptive", "DPM adaptive", aliases=("k_dpm_ad", "k_dpm_adaptive"), own_schedule=True
    ),
    Sampler("dpmpp_2s_ancestral", "DPM++ 2S a", "karras", ("k_dpmpp_2s_a",), noise="independent"),
    Sampler(
        "dpmpp_2s_ancestral_cfg_pp",
        "DPM++ 2S a CFG++",
        "karras",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler("dpmpp_sde", "DPM++ SDE", "karras", ("k_dpmpp_sde", "dpmpp_sde_gpu"), "brownian"),
    Sampler("dpmpp_2m", "DPM++ 2M", "karras", ("k_dpmpp_2m",)),
    Sampler("dpmpp_2m_cfg_pp", "DPM++ 2M CFG++", "karras", needs_uncond=True),
    Sampler(
        "dpmpp_2m_sde",
        "DPM++ 2M SDE",
        "exponential",
        ("k_dpmpp_2m_sde", "dpmpp_2m_sde_gpu"),
        "brownian",
    ),
    Sampler(
        "dpmpp_2m_sde_heun",
        "DPM++ 2M SDE Heun",
        "exponential",
        ("k_dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu"),
        "brownian",
    ),
    Sampler(
        "dpmpp_3m_sde",
        "DPM++ 3M SDE",
        "exponential",
        ("k_dpmpp_3m_sde", "dpmpp_3m_sde_gpu"),
        "brownian",
    ),
    Sampler("ddpm", "DDPM", noise="independent"),
    Sampler("lcm", "LCM", aliases=("k_lcm",), noise="independent"),
    Sampler("ipndm", "iPNDM"),
    Sampler("ipndm_v", "iPNDM V"),
    Sampler("deis", "DEIS"),
    Sampler("ddim", "DDIM", own_mask_noise=True),
    Sampler("uni_pc", "UniPC", discards_penultimate_sigma=True),
    Sampler("uni_pc_bh2", "UniPC BH2", discards_penultimate_sigma=True),
    Sampler("res_multistep", "RES Multistep"),
    Sampler("res_multistep_cfg_pp", "RES Multistep CFG++", needs_uncond=True),
    Sampler("res_multistep_ancestral", "RES Multistep a", noise="independent"),
    Sampler(
        "res_multistep_ancestral_cfg_pp",
        "RES Multistep a CFG++",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler("gradient_estimation", "Gradient Estimation"),
    Sampler("gradient_estimation_cfg_pp", "Gradient Estimation CFG++", needs_uncond=True),
    Sampler("er_sde", "ER SDE", noise="independent"),
    Sampler("seeds_2", "SEEDS 2", noise="independent"),
    Sampler("seeds_3", "SEEDS 3", noise="independent"),
    Sampler("sa_solver", "SA Solver", noise="independent"),
    Sampler("sa_solver_pece", "SA Solver PECE", noise="independent"),
)
SAMPLER_OF = {row.name: row for row in SAMPLERS}


def _key(spelling: str) -> str:
    return " ".join(spelling.casefold().split())


def _spellings(row: Sampler | Scheduler) -> tuple[str, ...]:
    return (row.name, row.label, *row.aliases)


_SCHEDULER_OF = {_key(s): row.name for row in SCHEDULERS for s in _spellings(row)}
_SAMPLER_OF: dict[str, tuple[str, str | None]] = {
    _key(f"{row.label} {spelling}"): (row.name, scheduler.name)
    for row in SAMPLERS
    for scheduler in SCHEDULERS
    for spelling in (scheduler.label, *scheduler.aliases)
} | {_key(s): (row.name, None) for row in SAMPLERS for s in _spellings(row)}


def sampler(spelling: str) -> tuple[str, str | None]:
    """The sampler, and the scheduler if the spelling names both ("DPM++ 2M Karras").

    Raises ValueError for an unknown name.
    """
    found = _SAMPLER_OF.get(_key(spelling))
    if found is None:
        raise ValueError(f"unknown sampler; known: {', '.join(row.label for row in SAMPLERS)}")
    return found


def scheduler(spelling: str) -> str | None:
    """The scheduler; None for "Automatic". Raises ValueError for an unknown name."""
    key = _key(spelling)
    if key == _key(AUTOMATIC):
        return None
    if key not in _SCHEDULER_OF:
        known = ", ".join((AUTOMATIC, *(row.label for row in SCHEDULERS)))
        raise ValueError(f"unknown scheduler; known: {known}")
    return _SCHEDULER_OF[key]


def resolve(sampler_spelling: str, scheduler_spelling: str) -> tuple[str, str]:
    """The sampler and scheduler of a request. Its own scheduler wins over one in the sampler."""
    name, joined = sampler(sampler_spelling)
    return name, scheduler(scheduler_spelling) or joined or SAMPLER_OF[name].automatic


def sampler_alone(spelling: str) -> str:
    """The sampler in a workflow. Raises ValueError if the spelling names a scheduler as well."""
    name, joined = sampler(spelling)
    if joined is not None:
        raise ValueError("the scheduler is an input of its own")
    return name


def scheduler_alone(spelling: str) -> str:
    """The scheduler in a workflow. Raises ValueError for "Automatic", which is not known there."""
    name = scheduler(spelling)
    if name is None:
        raise ValueError("Automatic is not known in a workflow")
    return name
