"""The WebUI's samplers and schedulers: those of `engine.graph.names`, and its own.

Where a name means something else in the WebUI than in ComfyUI, a row of its own says what. Nodes of
the WebUI take all rows; nodes of ComfyUI take those of `engine.graph.names` alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeAlias

from engine.graph import names
from engine.graph.names import AUTOMATIC, Sampler, Scheduler, key_of

Compatibility: TypeAlias = Literal["webui", "comfyui"]
"""Whose meaning the parameters of a request have."""

_BETA, _KL_OPTIMAL = "webui_beta", "webui_kl_optimal"
_TRAINED = 1000
"""The timesteps of a model."""
_TIMESTEPS, _TIME_UNIFORM, _ENDS = "webui_timesteps", "webui_time_uniform", "webui_ends"
ALIGN_YOUR_STEPS, ALIGN_YOUR_STEPS_XL = "align_your_steps", "align_your_steps_xl"

OWN_SCHEDULERS = (
    Scheduler(_BETA, "Beta", "webui_schedules:beta"),
    Scheduler(_KL_OPTIMAL, "KL Optimal", "webui_schedules:kl_optimal", has_end=True),
    Scheduler("polyexponential", "Polyexponential", "webui_schedules:polyexponential"),
    Scheduler(ALIGN_YOUR_STEPS, "Align Your Steps", "webui_schedules:align_your_steps"),
    Scheduler(ALIGN_YOUR_STEPS_XL, "Align Your Steps", "webui_schedules:align_your_steps_xl"),
    Scheduler(_TIMESTEPS, AUTOMATIC, "webui_schedules:timesteps", has_end=True),
    Scheduler(_TIME_UNIFORM, AUTOMATIC, "webui_schedules:time_uniform", has_end=True),
    Scheduler(_ENDS, AUTOMATIC, "webui_schedules:normal_to_the_end", has_end=True),
)
"""Those labelled "Automatic" belong to samplers that follow no other."""
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
NEW_SAMPLERS = tuple(row for row in OWN_SAMPLERS if not row.name.startswith("webui_"))
NEW_SCHEDULERS = tuple(
    row
    for row in OWN_SCHEDULERS
    if not row.name.startswith("webui_") and row.name != ALIGN_YOUR_STEPS_XL
)
"""Those whose names ComfyUI does not have."""
_ALONG_TIMESTEPS = {_TIMESTEPS, _TIME_UNIFORM}
_FOLLOWS_ITS_OWN = _ALONG_TIMESTEPS | {_ENDS}
_SAMPLER_HERE = {row.name.removeprefix("webui_"): row.name for row in OWN_SAMPLERS}
_SCHEDULER_HERE = {row.name.removeprefix("webui_"): row.name for row in OWN_SCHEDULERS}
_SCHEDULERS_BY_LABEL = {
    key_of(row.label): row.name
    for row in reversed(OWN_SCHEDULERS)
    if row.name not in _FOLLOWS_ITS_OWN
} | {key_of(row.name): row.name for row in NEW_SCHEDULERS}
_SAMPLERS_BY_LABEL: dict[str, tuple[str, str | None]] = {
    key_of(f"{row.label} {scheduler.label}"): (row.name, scheduler.name)
    for row in OWN_SAMPLERS
    for scheduler in SCHEDULER_OF.values()
    if scheduler.name not in _FOLLOWS_ITS_OWN
} | {key_of(row.label): (row.name, None) for row in OWN_SAMPLERS}


def sampler(spelling: str) -> tuple[str, str | None]:
    """The sampler in the WebUI's sense, and the scheduler if the spelling names both.

    Raises ValueError for an unknown name.
    """
    if found := _SAMPLERS_BY_LABEL.get(key_of(spelling)):
        name, joined = found
    else:
        try:
            name, joined = names.sampler(spelling)
        except ValueError as error:
            more = ", ".join(row.label for row in NEW_SAMPLERS)
            raise ValueError(f"{error}, {more}") from None
    return _SAMPLER_HERE.get(name, name), joined and _SCHEDULER_HERE.get(joined, joined)


def scheduler(spelling: str) -> str | None:
    """The scheduler in the WebUI's sense; None for "Automatic". Raises ValueError."""
    if found := _SCHEDULERS_BY_LABEL.get(key_of(spelling)):
        return found
    try:
        name = names.scheduler(spelling)
    except ValueError as error:
        more = ", ".join(row.label for row in NEW_SCHEDULERS)
        raise ValueError(f"{error}, {more}") from None
    return name and _SCHEDULER_HERE.get(name, name)


def resolve(
    sampler_spelling: str,
    scheduler_spelling: str,
    compatibility: Compatibility,
    *,
    from_noise: bool = True,
) -> tuple[str, str]:
    """The sampler and the scheduler of a request. Its own scheduler wins over a joined one.

    A sampler that takes both ends of a schedule alone has a scheduler only if it does not start
    `from_noise`. Raises ValueError for a name that is not known in that sense.
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
    """A spelling of the scheduler that a request asks for, even if it is joined to a sampler."""
    if scheduler(scheduler_spelling) is not None:
        return scheduler_spelling
    _, joined = sampler(sampler_spelling)
    return joined.removeprefix("webui_") if joined else AUTOMATIC


def follows_timesteps(row: Sampler) -> bool:
    """Whether a sampler steps through timesteps, whatever scheduler was asked for."""
    return row.automatic in _ALONG_TIMESTEPS


def sampler_alone(spelling: str) -> str:
    """The sampler of a node, by its name or by one of ComfyUI's. Raises ValueError."""
    return spelling if spelling in SAMPLER_OF else names.sampler_alone(spelling)


def scheduler_alone(spelling: str) -> str:
    """The scheduler of a node, by its name or by one of ComfyUI's. Raises ValueError."""
    return spelling if spelling in SCHEDULER_OF else names.scheduler_alone(spelling)


def known_sampler(spelling: str, compatibility: Compatibility) -> str:
    """The spelling. Raises ValueError where it is not known in that sense."""
    (sampler if compatibility == "webui" else names.sampler)(spelling)
    return spelling


def known_scheduler(spelling: str, compatibility: Compatibility) -> str:
    """The spelling. Raises ValueError where it is not known in that sense."""
    (scheduler if compatibility == "webui" else names.scheduler)(spelling)
    return spelling


def steps_of(scheduler: str, steps: int) -> int:
    """How many steps the schedule of that name has for a number of steps that is asked for."""
    if scheduler not in _ALONG_TIMESTEPS:
        return steps
    return max(steps, len(range(0, _TRAINED, max(_TRAINED // steps, 1))))
