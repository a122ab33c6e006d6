"""The samplers and schedulers of the WebUI: the rows of `engine.graph.names`, and more rows.

A name that has another meaning in the WebUI than in ComfyUI has its own row here. Nodes of the
WebUI accept all rows. Nodes of ComfyUI accept only the rows of `engine.graph.names`.
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
"""The number of timesteps with which a model was trained."""
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
SCHEDULER_OF = names.SCHEDULER_OF | {row.name: row for row in OWN_SCHEDULERS}
SAMPLER_OF = (
    names.SAMPLER_OF
    | {name: replace(names.SAMPLER_OF[name], eta=1.0) for name in _ANCESTRAL}
    | {name: replace(names.SAMPLER_OF[name], churns=True) for name in _WITHOUT_PAST}
    | {row.name: row for row in OWN_SAMPLERS}
)
_NEW_SAMPLERS = tuple(row for row in OWN_SAMPLERS if not row.name.startswith("webui_"))
_NEW_SCHEDULERS = tuple(
    row
    for row in OWN_SCHEDULERS
    if not row.name.startswith("webui_") and row.name != ALIGN_YOUR_STEPS_XL
)
"""The schedulers with names that ComfyUI does not have."""
ALL_SCHEDULERS = (*names.SCHEDULERS, *_NEW_SCHEDULERS)
_ALONG_TIMESTEPS = {_TIMESTEPS, _TIME_UNIFORM}
ALL_SAMPLERS = tuple(
    replace(row, automatic=AUTOMATIC) if row.automatic in _ALONG_TIMESTEPS else row
    for row in (*names.SAMPLERS, *_NEW_SAMPLERS)
)
"""Each sampler that a diffusion request may name. Workflows must not name `_NEW_SAMPLERS`.

For a sampler that uses no other scheduler, `automatic` is "Automatic"."""
_FOLLOWS_ITS_OWN = _ALONG_TIMESTEPS | {_ENDS}
_SAMPLER_HERE = {row.name.removeprefix("webui_"): row.name for row in OWN_SAMPLERS}
_SCHEDULER_HERE = {row.name.removeprefix("webui_"): row.name for row in OWN_SCHEDULERS}
_SCHEDULERS_BY_LABEL = {
    key_of(row.label): row.name
    for row in reversed(OWN_SCHEDULERS)
    if row.name not in _FOLLOWS_ITS_OWN
} | {key_of(row.name): row.name for row in _NEW_SCHEDULERS}
_SAMPLERS_BY_LABEL: dict[str, tuple[str, str | None]] = {
    key_of(f"{row.label} {scheduler.label}"): (row.name, scheduler.name)
    for row in OWN_SAMPLERS
    for scheduler in SCHEDULER_OF.values()
    if scheduler.name not in _FOLLOWS_ITS_OWN
} | {key_of(row.label): (row.name, None) for row in OWN_SAMPLERS}


def sampler(spelling: str) -> tuple[str, str | None]:
    """Return the sampler in the WebUI's sense, and the scheduler if the spelling names both.

    Raises ValueError for an unknown name.
    """
    if found := _SAMPLERS_BY_LABEL.get(key_of(spelling)):
        name, joined = found
    else:
        try:
            name, joined = names.sampler(spelling)
        except ValueError as error:
            more = ", ".join(row.label for row in _NEW_SAMPLERS)
            raise ValueError(f"{error}, {more}") from None
    return _SAMPLER_HERE.get(name, name), joined and _SCHEDULER_HERE.get(joined, joined)


def scheduler(spelling: str) -> str | None:
    """Return the scheduler in the WebUI's sense, or None for "Automatic". Raises ValueError."""
    if found := _SCHEDULERS_BY_LABEL.get(key_of(spelling)):
        return found
    try:
        name = names.scheduler(spelling)
    except ValueError as error:
        more = ", ".join(row.label for row in _NEW_SCHEDULERS)
        raise ValueError(f"{error}, {more}") from None
    return name and _SCHEDULER_HERE.get(name, name)


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
    if automatic in _FOLLOWS_ITS_OWN:
        return name, automatic
    return name, scheduler(scheduler_spelling) or joined or automatic


def asked_scheduler(sampler_spelling: str, scheduler_spelling: str) -> str:
    """Return the requested scheduler, which may be part of the name of the sampler."""
    if scheduler(scheduler_spelling) is not None:
        return scheduler_spelling
    _, joined = sampler(sampler_spelling)
    return joined.removeprefix("webui_") if joined else AUTOMATIC


def follows_timesteps(row: Sampler) -> bool:
    """Whether a sampler steps through timesteps and ignores the requested scheduler."""
    return row.automatic in _ALONG_TIMESTEPS


def sampler_alone(spelling: str) -> str:
    """Return the sampler of a node for its own name or a name of ComfyUI. Raises ValueError."""
    return spelling if spelling in SAMPLER_OF else names.sampler_alone(spelling)


def scheduler_alone(spelling: str) -> str:
    """Return the scheduler of a node for its own name or a name of ComfyUI. Raises ValueError."""
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
    """Return the number of steps in the schedule of a scheduler if `steps` steps are requested."""
    if scheduler not in _ALONG_TIMESTEPS:
        return steps
    return max(steps, len(range(0, _TRAINED, max(_TRAINED // steps, 1))))
