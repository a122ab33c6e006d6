"""The samplers and schedulers, and the spellings that callers use for them.

`function` is only a path, so this module needs no torch. `engine.diffusion.samplers.sampler_lookup`
imports the function.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

AUTOMATIC = "Automatic"
"""The WebUI's name for the scheduler that is the default of a sampler."""


_GPU = "_gpu"


@dataclass(frozen=True, slots=True)
class Scheduler:
    name: str
    """ComfyUI's spelling."""
    label: str
    """The WebUI's spelling."""
    function: str
    """`module:function` in `engine.diffusion.samplers`."""
    _: KW_ONLY
    aliases: tuple[str, ...] = ()
    has_end: bool = False
    """Whether the last sigma of the schedule is not 0."""


@dataclass(frozen=True, slots=True)
class Sampler:
    name: str
    """ComfyUI's spelling."""
    label: str
    """The WebUI's spelling."""
    function: str
    """`module:function` in `engine.diffusion.samplers`."""
    _: KW_ONLY
    automatic: str = "normal"
    """The scheduler for "Automatic"."""
    aliases: tuple[str, ...] = ()
    calls: int = 1
    """The largest number of model calls in one step."""
    least_steps: int = 0
    """The number of steps that the sampler may take even if the schedule has fewer steps."""
    noise: Literal["none", "independent", "brownian"] = "none"
    """The noise that the steps add: independent draws, or increments of one Brownian path."""
    draws_path_on_device: bool = False
    """Whether ComfyUI draws the Brownian path on the device. Other paths are drawn on the CPU."""
    discards_penultimate_sigma: bool = False
    """Whether the schedules of the sampler omit their last sigma above 0."""
    own_schedule: bool = False
    """Whether the sampler chooses its own sigmas between the ends of a schedule."""
    own_mask_noise: bool = False
    """Whether the part that a mask keeps has other noise than the rest of the latent."""
    eta: float | None = None
    """The default of eta, the amount of noise of an ancestral step. None: eta has no effect."""
    noise_interval: tuple[float, float] | None = None
    """The fractions of the timesteps between which noise is added. None: in every step."""
    churns: bool = False
    """Whether noise may be added before each step, as no step uses the x0 of an earlier step."""
    needs_uncond: bool = False
    """Whether the sampler needs the unconditional x0 in addition to the guided x0. CFG++ samplers
    need both."""

    @property
    def cpu_name(self) -> str:
        """The name of the sampler with the same steps whose path is drawn on the CPU."""
        return self.name.removesuffix(_GPU)


# In ComfyUI's order, because the first choice is the default of a new node.
SCHEDULERS = (
    Scheduler("simple", "Simple", "schedules:simple"),
    Scheduler("sgm_uniform", "SGM Uniform", "schedules:sgm_uniform", aliases=("SGMUniform",)),
    Scheduler("karras", "Karras", "schedules:karras"),
    Scheduler("exponential", "Exponential", "schedules:exponential"),
    Scheduler("ddim_uniform", "DDIM", "schedules:ddim_uniform", aliases=("DDIM Uniform",)),
    Scheduler("beta", "Beta", "schedules:beta"),
    Scheduler("normal", "Normal", "schedules:normal", aliases=("Uniform",)),
    Scheduler("linear_quadratic", "Linear Quadratic", "schedules:linear_quadratic"),
    Scheduler("kl_optimal", "KL Optimal", "schedules:kl_optimal"),
)
ADAPTIVE_STEPS = 64
"""The number of steps that an adaptive sampler may take if its schedule has fewer steps."""
_SAMPLERS = (
    Sampler("euler", "Euler", "runge_kutta:euler", aliases=("k_euler",)),
    Sampler("euler_cfg_pp", "Euler CFG++", "runge_kutta:euler_cfg_pp", needs_uncond=True),
    Sampler(
        "euler_ancestral",
        "Euler a",
        "ancestral:euler_ancestral",
        aliases=("k_euler_a", "k_euler_ancestral"),
        noise="independent",
    ),
    Sampler(
        "euler_ancestral_cfg_pp",
        "Euler a CFG++",
        "ancestral:euler_ancestral_cfg_pp",
        noise="independent",
        needs_uncond=True,
    ),
    Sampler("heun", "Heun", "runge_kutta:heun", aliases=("k_heun",), calls=2),
    Sampler("heunpp2", "Heun++ 2", "runge_kutta:heunpp2", calls=3),
    Sampler("exp_heun_2_x0", "Exp Heun 2 x0", "sde:exp_heun_2_x0", calls=2),
    Sampler(
        "exp_heun_2_x0_sde",
        "Exp Heun 2 x0 SDE",
        "sde:exp_heun_2_x0_sde",
        calls=2,
        noise="independent",
    ),
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
        aliases=("k_dpmpp_sde",),
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
        aliases=("k_dpmpp_2m_sde",),
        noise="brownian",
    ),
    Sampler(
        "dpmpp_2m_sde_heun",
        "DPM++ 2M SDE Heun",
        "sde:dpmpp_2m_sde_heun",
        automatic="exponential",
        aliases=("k_dpmpp_2m_sde_heun",),
        noise="brownian",
    ),
    Sampler(
        "dpmpp_3m_sde",
        "DPM++ 3M SDE",
        "sde:dpmpp_3m_sde",
        automatic="exponential",
        aliases=("k_dpmpp_3m_sde",),
        noise="brownian",
    ),
    Sampler("ddpm", "DDPM", "ancestral:ddpm", noise="independent"),
    Sampler("lcm", "LCM", "ancestral:lcm", aliases=("k_lcm",), noise="independent"),
    Sampler("ipndm", "iPNDM", "multistep:ipndm"),
    Sampler("ipndm_v", "iPNDM V", "multistep:ipndm_v"),
    Sampler("deis", "DEIS", "multistep:deis"),
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
    Sampler(
        "sa_solver",
        "SA Solver",
        "multistep:sa_solver",
        noise="independent",
        noise_interval=(0.2, 0.8),
    ),
    Sampler(
        "sa_solver_pece",
        "SA Solver PECE",
        "multistep:sa_solver_pece",
        calls=2,
        noise="independent",
        noise_interval=(0.2, 0.8),
    ),
    Sampler("ddim", "DDIM", "runge_kutta:ddim", own_mask_noise=True),
    Sampler("uni_pc", "UniPC", "uni_pc:uni_pc", discards_penultimate_sigma=True),
    Sampler("uni_pc_bh2", "UniPC BH2", "uni_pc:uni_pc_bh2", discards_penultimate_sigma=True),
)


def _with_gpu_variant(row: Sampler) -> tuple[Sampler, ...]:
    """Return the sampler and, if it has a Brownian path, its `_gpu` variant."""
    if row.noise != "brownian":
        return (row,)
    name, label = f"{row.name}{_GPU}", f"{row.label} GPU"
    return row, replace(row, name=name, label=label, aliases=(), draws_path_on_device=True)


SAMPLERS = tuple(each for row in _SAMPLERS for each in _with_gpu_variant(row))
SCHEDULER_OF = {each.name: each for each in SCHEDULERS}
SAMPLER_OF = {each.name: each for each in SAMPLERS}


def key_of(spelling: str) -> str:
    """Return a key that is equal for spellings that differ only in case and spaces."""
    return " ".join(spelling.casefold().split())


def _spellings(each: Sampler | Scheduler) -> tuple[str, ...]:
    return (each.name, each.label, *each.aliases)


_SCHEDULER_NAMES = {key_of(s): each.name for each in SCHEDULERS for s in _spellings(each)}
_SAMPLER_NAMES: dict[str, tuple[str, str | None]] = {
    key_of(f"{each.label} {spelling}"): (each.name, scheduler.name)
    for each in SAMPLERS
    for scheduler in SCHEDULERS
    for spelling in (scheduler.label, *scheduler.aliases)
} | {key_of(s): (each.name, None) for each in SAMPLERS for s in _spellings(each)}


def sampler(spelling: str) -> tuple[str, str | None]:
    """Return the sampler, and the scheduler if the spelling names both ("DPM++ 2M Karras").

    Raises ValueError for an unknown name.
    """
    found = _SAMPLER_NAMES.get(key_of(spelling))
    if found is None:
        raise ValueError(f"unknown sampler; known: {', '.join(each.label for each in SAMPLERS)}")
    return found


def scheduler(spelling: str) -> str | None:
    """Return the scheduler, or None for "Automatic". Raises ValueError for an unknown name."""
    key = key_of(spelling)
    if key == key_of(AUTOMATIC):
        return None
    if key not in _SCHEDULER_NAMES:
        known = ", ".join((AUTOMATIC, *(each.label for each in SCHEDULERS)))
        raise ValueError(f"unknown scheduler; known: {known}")
    return _SCHEDULER_NAMES[key]


def resolve(sampler_spelling: str, scheduler_spelling: str) -> tuple[str, str]:
    """Return the sampler and the scheduler of a request.

    `scheduler_spelling` has precedence over a scheduler in `sampler_spelling`.
    """
    name, joined = sampler(sampler_spelling)
    return name, scheduler(scheduler_spelling) or joined or SAMPLER_OF[name].automatic


def sampler_alone(spelling: str) -> str:
    """Return the sampler of a workflow. Raises ValueError if `spelling` also names a scheduler."""
    name, joined = sampler(spelling)
    if joined is not None:
        raise ValueError("the scheduler has an input of its own")
    return name


def scheduler_alone(spelling: str) -> str:
    """Return the scheduler of a workflow. Raises ValueError for "Automatic"."""
    name = scheduler(spelling)
    if name is None:
        raise ValueError("a workflow cannot use Automatic")
    return name
