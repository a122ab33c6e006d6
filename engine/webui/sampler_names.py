"""The samplers and schedulers of the WebUI: those of `engine.graph.names`, and more.

A name that has another meaning in the WebUI than in ComfyUI is defined again here. Nodes of the
WebUI accept all names. Nodes of ComfyUI accept only the names of `engine.graph.names`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from engine.graph import names
from engine.graph.names import AUTOMATIC, Sampler, Scheduler, key_of

Compatibility: TypeAlias = Literal["webui", "comfyui"]
"""The product whose semantics apply to the parameters of a request."""

_BETA, _KL_OPTIMAL = "webui_beta", "webui_kl_optimal"
_TRAINED = 1000
"""The number of timesteps with which models are trained."""
_TIMESTEPS, _TIME_UNIFORM, _ENDS = "webui_timesteps", "webui_time_uniform", "webui_ends"
ALIGN_YOUR_STEPS, ALIGN_YOUR_STEPS_XL = "align_your_steps", "align_your_steps_xl"

OWN_SCHEDULERS = (
    Scheduler(_BETA, "Beta", "schedules:webui_beta"),
    Scheduler(_KL_OPTIMAL, "KL Optimal", "schedules:webui_kl_optimal", has_end=True),
    Scheduler("polyexponential", "Polyexponential", "schedules:webui_polyexponential"),
    Scheduler(ALIGN_YOUR_STEPS, "Align Your Steps", "schedules:align_your_steps"),
    Scheduler(ALIGN_YOUR_STEPS_XL, "Align Your Steps", "schedules:align_your_steps_xl"),
    Scheduler(_TIMESTEPS, AUTOMATIC, "schedules:timesteps", has_end=True),
    Scheduler(_TIME_UNIFORM, AUTOMATIC, "schedules:time_uniform", has_end=True),
    Scheduler(_ENDS, AUTOMATIC, "schedules:normal_to_the_end", has_end=True),
)
"""The schedulers with the label "Automatic" are for samplers that use no other scheduler."""
_ANCESTRAL = (
    "euler_ancestral",
    "dpm_2_ancestral",
    "dpmpp_2s_ancestral",
    "dpmpp_sde",
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_heun",
    "dpmpp_3m_sde",
)
_WITHOUT_PAST = ("euler", "heun", "dpm_2")
OWN_SAMPLERS = (
    replace(
        names.SAMPLER_OF["dpmpp_3m_sde"],
        name="webui_dpmpp_3m_sde",
        eta=1.0,
        discards_penultimate_sigma=True,
    ),
    replace(
        names.SAMPLER_OF["dpm_fast"],
        name="webui_dpm_fast",
        function="dpm_solver:dpm_fast_ancestral",
        noise="independent",
        eta=1.0,
        automatic=_ENDS,
    ),
    replace(
        names.SAMPLER_OF["dpm_adaptive"],
        name="webui_dpm_adaptive",
        function="dpm_solver:dpm_adaptive_ancestral",
        noise="independent",
        eta=1.0,
        automatic=_ENDS,
    ),
    Sampler(
        "webui_ddim",
        "DDIM",
        "compvis:ddim",
        automatic=_TIMESTEPS,
        noise="independent",
        eta=0.0,
    ),
    Sampler(
        "ddim_cfg_pp",
        "DDIM CFG++",
        "compvis:ddim_cfg_pp",
        automatic=_TIMESTEPS,
        noise="independent",
        eta=0.0,
        needs_uncond=True,
    ),
    Sampler("plms", "PLMS", "compvis:plms", automatic=_TIMESTEPS, calls=2),
    Sampler("webui_uni_pc", "UniPC", "compvis:uni_pc", automatic=_TIME_UNIFORM),
    Sampler(
        "restart",
        "Restart",
        "restart:restart",
        automatic="karras",
        noise="independent",
        calls=2,
        own_schedule=True,
    ),
)
SCHEDULER_OF = names.SCHEDULER_OF | {each.name: each for each in OWN_SCHEDULERS}
SAMPLER_OF = (
    names.SAMPLER_OF
    | {each.name: replace(each, eta=1.0) for each in names.SAMPLERS if each.cpu_name in _ANCESTRAL}
    | {name: replace(names.SAMPLER_OF[name], churns=True) for name in _WITHOUT_PAST}
    | {each.name: each for each in OWN_SAMPLERS}
)
_NEW_SAMPLERS = tuple(each for each in OWN_SAMPLERS if not each.name.startswith("webui_"))
_NEW_SCHEDULERS = tuple(
    each
    for each in OWN_SCHEDULERS
    if not each.name.startswith("webui_") and each.name != ALIGN_YOUR_STEPS_XL
)
ALL_SCHEDULERS = (*names.SCHEDULERS, *_NEW_SCHEDULERS)
_TIMESTEP_SCHEDULERS = {_TIMESTEPS, _TIME_UNIFORM}
_WITHOUT_NOISE_FACTOR = {"euler_ancestral", "webui_dpm_adaptive", "restart", "lcm"}
"""The samplers of the WebUI that add noise, but for which the WebUI does not list `s_noise`."""
ALL_SAMPLERS = tuple(
    replace(each, automatic=AUTOMATIC) if each.automatic in _TIMESTEP_SCHEDULERS else each
    for each in (*names.SAMPLERS, *_NEW_SAMPLERS)
)
"""Each sampler that a diffusion request may name. Workflows must not name `_NEW_SAMPLERS`.

For a sampler that follows timesteps, `automatic` is "Automatic".
"""
_FIXED_SCHEDULERS = _TIMESTEP_SCHEDULERS | {_ENDS}
_WEBUI_SAMPLER = {each.name.removeprefix("webui_"): each.name for each in OWN_SAMPLERS}
_WEBUI_SCHEDULER = {each.name.removeprefix("webui_"): each.name for each in OWN_SCHEDULERS}
_SCHEDULERS_BY_LABEL = {
    key_of(each.label): each.name
    for each in reversed(OWN_SCHEDULERS)
    if each.name not in _FIXED_SCHEDULERS
} | {key_of(each.name): each.name for each in _NEW_SCHEDULERS}
_SAMPLERS_BY_LABEL: dict[str, tuple[str, str | None]] = {
    key_of(f"{each.label} {scheduler.label}"): (each.name, scheduler.name)
    for each in OWN_SAMPLERS
    for scheduler in SCHEDULER_OF.values()
    if scheduler.name not in _FIXED_SCHEDULERS
} | {key_of(each.label): (each.name, None) for each in OWN_SAMPLERS}


def sampler(spelling: str) -> tuple[str, str | None]:
    """Return the WebUI's sampler, and its scheduler if the spelling names both.

    Raises ValueError for an unknown name.
    """
    if found := _SAMPLERS_BY_LABEL.get(key_of(spelling)):
        name, joined = found
    else:
        try:
            name, joined = names.sampler(spelling)
        except ValueError as error:
            more = ", ".join(each.label for each in _NEW_SAMPLERS)
            raise ValueError(f"{error}, {more}") from None
    # The setting `randn_source` of the WebUI decides where paths are drawn, not the sampler.
    name = names.SAMPLER_OF[name].cpu_name if name in names.SAMPLER_OF else name
    return _WEBUI_SAMPLER.get(name, name), joined and _WEBUI_SCHEDULER.get(joined, joined)


def scheduler(spelling: str) -> str | None:
    """Return the WebUI's scheduler, or None for "Automatic". Raises ValueError for another name."""
    if found := _SCHEDULERS_BY_LABEL.get(key_of(spelling)):
        return found
    try:
        name = names.scheduler(spelling)
    except ValueError as error:
        more = ", ".join(each.label for each in _NEW_SCHEDULERS)
        raise ValueError(f"{error}, {more}") from None
    return name and _WEBUI_SCHEDULER.get(name, name)


def resolve(
    sampler_spelling: str,
    scheduler_spelling: str,
    compatibility: Compatibility,
    *,
    from_noise: bool = True,
) -> tuple[str, str]:
    """Return the sampler and the scheduler of a request.

    `scheduler_spelling` has precedence over a scheduler in `sampler_spelling`. A sampler that uses
    only the ends of a schedule has a fixed scheduler when sampling starts `from_noise`. Raises
    ValueError for a name that the product of `compatibility` does not have.
    """
    if compatibility == "comfyui":
        return names.resolve(sampler_spelling, scheduler_spelling)
    name, joined = sampler(sampler_spelling)
    automatic = SAMPLER_OF[name].automatic
    if automatic == _ENDS and not from_noise:
        automatic = "normal"
    if automatic in _FIXED_SCHEDULERS:
        return name, automatic
    return name, scheduler(scheduler_spelling) or joined or automatic


def asked_scheduler(sampler_spelling: str, scheduler_spelling: str) -> str:
    """Return the requested scheduler, which may be part of the name of the sampler."""
    if scheduler(scheduler_spelling) is not None:
        return scheduler_spelling
    _, joined = sampler(sampler_spelling)
    return joined.removeprefix("webui_") if joined else AUTOMATIC


def follows_timesteps(sampler: Sampler) -> bool:
    """Whether a sampler steps through timesteps and ignores the requested scheduler."""
    return sampler.automatic in _TIMESTEP_SCHEDULERS


def noise_options(sampler: Sampler) -> tuple[str, ...]:
    """Return the members about noise that the WebUI lists for a sampler. Others have no effect."""
    if sampler.churns:
        return ("s_churn", "s_tmin", "s_tmax", "s_noise")
    has_noise = sampler.noise != "none" and not follows_timesteps(sampler)
    return ("s_noise",) if has_noise and sampler.name not in _WITHOUT_NOISE_FACTOR else ()


def sampler_alone(spelling: str) -> str:
    """Return the sampler for a name of this module or of ComfyUI. Raises ValueError otherwise."""
    return spelling if spelling in SAMPLER_OF else names.sampler_alone(spelling)


def scheduler_alone(spelling: str) -> str:
    """Return the scheduler for a name of this module or of ComfyUI. Raises ValueError otherwise."""
    return spelling if spelling in SCHEDULER_OF else names.scheduler_alone(spelling)


def known_sampler(spelling: str, compatibility: Compatibility) -> str:
    """Return the spelling. Raises ValueError if the product has no such sampler."""
    (sampler if compatibility == "webui" else names.sampler)(spelling)
    return spelling


def known_scheduler(spelling: str, compatibility: Compatibility) -> str:
    """Return the spelling. Raises ValueError if the product has no such scheduler."""
    (scheduler if compatibility == "webui" else names.scheduler)(spelling)
    return spelling


def steps_of(scheduler: str, steps: int) -> int:
    """Return the number of steps that the schedule has if `steps` steps are requested."""
    if scheduler not in _TIMESTEP_SCHEDULERS:
        return steps
    return max(steps, len(range(0, _TRAINED, max(_TRAINED // steps, 1))))
