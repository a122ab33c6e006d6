"""The table of samplers and schedulers, and the spellings that callers use for them.

One row registers a sampler or a scheduler: it has the spellings, and the place of the function,
which `engine.diffusion.samplers.lookup` imports. So the names are known without torch.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

AUTOMATIC = "Automatic"
"""The WebUI's name for the scheduler that is the default of a sampler."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler: it makes a schedule for a number of steps."""

    name: str
    """ComfyUI's spelling."""
    label: str
    """The WebUI's spelling."""
    function: str
    """`module:function` in `engine.diffusion.samplers`."""
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    """More spellings."""
    has_end: bool = False
    """It ends at a sigma of its own, and not at 0."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler, and what it needs."""

    name: str
    """ComfyUI's spelling."""
    label: str
    """The WebUI's spelling."""
    function: str
    """`module:function` in `engine.diffusion.samplers`."""
    _: KW_ONLY
    automatic: str = "normal"
    """The scheduler that "Automatic" stands for."""
    aliases: tuple[str, ...] = ()
    """More spellings."""
    calls: int = 1
    """How often it calls the model in a step, at most."""
    least_steps: int = 0
    """It may take so many steps, however few the schedule has."""
    noise: Literal["none", "independent", "brownian"] = "none"
    """The noise that its steps add: independent draws, or increments of one Brownian path."""
    discards_penultimate_sigma: bool = False
    """Its schedules leave out their last sigma above 0."""
    own_schedule: bool = False
    """It chooses its own sigmas between the ends of a schedule."""
    own_mask_noise: bool = False
    """The part of a latent that a noise mask keeps gets other noise than the start."""
    eta: float | None = None
    """How much of the noise of ancestral steps it adds where nothing else is asked for; None: that
    cannot be chosen."""
    churns: bool = False
    """Noise may be added before each of its steps, as none of them uses a past one."""
    needs_uncond: bool = False
    """It needs the unconditional x0 beside the guided one, as CFG++ does."""


SCHEDULERS = (
    Scheduler("normal", "Normal", "schedules:normal", aliases=("Uniform",)),
    Scheduler("karras", "Karras", "schedules:karras"),
    Scheduler("exponential", "Exponential", "schedules:exponential"),
    Scheduler("sgm_uniform", "SGM Uniform", "schedules:sgm_uniform", aliases=("SGMUniform",)),
    Scheduler("simple", "Simple", "schedules:simple"),
    Scheduler("ddim_uniform", "DDIM", "schedules:ddim_uniform", aliases=("DDIM Uniform",)),
    Scheduler("beta", "Beta", "schedules:beta"),
    Scheduler("linear_quadratic", "Linear Quadratic", "schedules:linear_quadratic"),
    Scheduler("kl_optimal", "KL Optimal", "schedules:kl_optimal"),
)
ADAPTIVE_STEPS = 64
"""The steps that an adaptive sampler may take where its schedule has no more."""
SAMPLERS = (
    Sampler("euler", "Euler", "runge_kutta:euler", aliases=("k_euler",)),
    Sampler(
        "euler_ancestral",
        "Euler a",
        "ancestral:euler_ancestral",
        aliases=("k_euler_a", "k_euler_ancestral"),
        noise="independent",
    ),
    Sampler("euler_cfg_pp", "Euler CFG++", "runge_kutta:euler_cfg_pp", needs_uncond=True),
    Sampler(
        "euler_ancestral_cfg_pp",
        "Euler a CFG++",
        "ancestral:euler_ancestral_cfg_pp",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler("heun", "Heun", "runge_kutta:heun", aliases=("k_heun",), calls=2),
    Sampler("heunpp2", "Heun++ 2", "runge_kutta:heunpp2", calls=3),
    Sampler(
        "dpm_2",
        "DPM2",
        "runge_kutta:dpm_2",
        calls=2,
        automatic="karras",
        aliases=("k_dpm_2",),
        discards_penultimate_sigma=True,
    ),
    Sampler(
        "dpm_2_ancestral",
        "DPM2 a",
        "ancestral:dpm_2_ancestral",
        calls=2,
        automatic="karras",
        aliases=("k_dpm_2_a", "k_dpm_2_ancestral"),
        noise="independent",
        discards_penultimate_sigma=True,
    ),
    Sampler("lms", "LMS", "multistep:lms", aliases=("k_lms",)),
    Sampler(
        "dpm_fast", "DPM fast", "dpm_solver:dpm_fast", aliases=("k_dpm_fast",), own_schedule=True
    ),
    Sampler(
        "dpm_adaptive",
        "DPM adaptive",
        "dpm_solver:dpm_adaptive",
        calls=3,
        least_steps=ADAPTIVE_STEPS,
        aliases=("k_dpm_ad", "k_dpm_adaptive"),
        own_schedule=True,
    ),
    Sampler(
        "dpmpp_2s_ancestral",
        "DPM++ 2S a",
        "ancestral:dpmpp_2s_ancestral",
        calls=2,
        automatic="karras",
        aliases=("k_dpmpp_2s_a",),
        noise="independent",
    ),
    Sampler(
        "dpmpp_2s_ancestral_cfg_pp",
        "DPM++ 2S a CFG++",
        "ancestral:dpmpp_2s_ancestral_cfg_pp",
        calls=2,
        automatic="karras",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler(
        "dpmpp_sde",
        "DPM++ SDE",
        "sde:dpmpp_sde",
        calls=2,
        automatic="karras",
        aliases=("k_dpmpp_sde", "dpmpp_sde_gpu"),
        noise="brownian",
    ),
    Sampler(
        "dpmpp_2m", "DPM++ 2M", "multistep:dpmpp_2m", automatic="karras", aliases=("k_dpmpp_2m",)
    ),
    Sampler(
        "dpmpp_2m_cfg_pp",
        "DPM++ 2M CFG++",
        "multistep:dpmpp_2m_cfg_pp",
        automatic="karras",
        needs_uncond=True,
    ),
    Sampler(
        "dpmpp_2m_sde",
        "DPM++ 2M SDE",
        "sde:dpmpp_2m_sde",
        automatic="exponential",
        aliases=("k_dpmpp_2m_sde", "dpmpp_2m_sde_gpu"),
        noise="brownian",
    ),
    Sampler(
        "dpmpp_2m_sde_heun",
        "DPM++ 2M SDE Heun",
        "sde:dpmpp_2m_sde_heun",
        automatic="exponential",
        aliases=("k_dpmpp_2m_sde_heun", "dpmpp_2m_sde_heun_gpu"),
        noise="brownian",
    ),
    Sampler(
        "dpmpp_3m_sde",
        "DPM++ 3M SDE",
        "sde:dpmpp_3m_sde",
        automatic="exponential",
        aliases=("k_dpmpp_3m_sde", "dpmpp_3m_sde_gpu"),
        noise="brownian",
    ),
    Sampler("ddpm", "DDPM", "ancestral:ddpm", noise="independent"),
    Sampler("lcm", "LCM", "ancestral:lcm", aliases=("k_lcm",), noise="independent"),
    Sampler("ipndm", "iPNDM", "multistep:ipndm"),
    Sampler("ipndm_v", "iPNDM V", "multistep:ipndm_v"),
    Sampler("deis", "DEIS", "multistep:deis"),
    Sampler("ddim", "DDIM", "runge_kutta:ddim", own_mask_noise=True),
    Sampler("uni_pc", "UniPC", "uni_pc:uni_pc", discards_penultimate_sigma=True),
    Sampler("uni_pc_bh2", "UniPC BH2", "uni_pc:uni_pc_bh2", discards_penultimate_sigma=True),
    Sampler("res_multistep", "RES Multistep", "multistep:res_multistep"),
    Sampler(
        "res_multistep_cfg_pp",
        "RES Multistep CFG++",
        "multistep:res_multistep_cfg_pp",
        needs_uncond=True,
    ),
    Sampler(
        "res_multistep_ancestral",
        "RES Multistep a",
        "multistep:res_multistep_ancestral",
        noise="independent",
    ),
    Sampler(
        "res_multistep_ancestral_cfg_pp",
        "RES Multistep a CFG++",
        "multistep:res_multistep_ancestral_cfg_pp",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler("gradient_estimation", "Gradient Estimation", "multistep:gradient_estimation"),
    Sampler(
        "gradient_estimation_cfg_pp",
        "Gradient Estimation CFG++",
        "multistep:gradient_estimation_cfg_pp",
        needs_uncond=True,
    ),
    Sampler("er_sde", "ER SDE", "sde:er_sde", noise="independent"),
    Sampler("seeds_2", "SEEDS 2", "sde:seeds_2", calls=2, noise="independent"),
    Sampler("seeds_3", "SEEDS 3", "sde:seeds_3", calls=3, noise="independent"),
    Sampler("sa_solver", "SA Solver", "sa_solver:sa_solver", noise="independent"),
    Sampler(
        "sa_solver_pece", "SA Solver PECE", "sa_solver:sa_solver_pece", calls=2, noise="independent"
    ),
)
SCHEDULER_OF = {row.name: row for row in SCHEDULERS}
SAMPLER_OF = {row.name: row for row in SAMPLERS}


def key_of(spelling: str) -> str:
    """Equal for spellings that differ in case and spaces alone."""
    return " ".join(spelling.casefold().split())


def _spellings(row: Sampler | Scheduler) -> tuple[str, ...]:
    return (row.name, row.label, *row.aliases)


_SCHEDULER_NAMES = {key_of(s): row.name for row in SCHEDULERS for s in _spellings(row)}
_SAMPLER_NAMES: dict[str, tuple[str, str | None]] = {
    key_of(f"{row.label} {spelling}"): (row.name, scheduler.name)
    for row in SAMPLERS
    for scheduler in SCHEDULERS
    for spelling in (scheduler.label, *scheduler.aliases)
} | {key_of(s): (row.name, None) for row in SAMPLERS for s in _spellings(row)}


def sampler(spelling: str) -> tuple[str, str | None]:
    """The sampler, and the scheduler if the spelling names both ("DPM++ 2M Karras").

    Raises ValueError for an unknown name.
    """
    found = _SAMPLER_NAMES.get(key_of(spelling))
    if found is None:
        raise ValueError(f"unknown sampler; known: {', '.join(row.label for row in SAMPLERS)}")
    return found


def scheduler(spelling: str) -> str | None:
    """The scheduler; None for "Automatic". Raises ValueError for an unknown name."""
    key = key_of(spelling)
    if key == key_of(AUTOMATIC):
        return None
    if key not in _SCHEDULER_NAMES:
        known = ", ".join((AUTOMATIC, *(row.label for row in SCHEDULERS)))
        raise ValueError(f"unknown scheduler; known: {known}")
    return _SCHEDULER_NAMES[key]


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
