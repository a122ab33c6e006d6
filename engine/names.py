"""Samplers and schedulers, and the spellings that callers use for them.

A sampler or scheduler is one row here and one function in `engine.diffusion`.
"""

from __future__ import annotations

from dataclasses import dataclass

AUTOMATIC = "Automatic"
"""WebUI's word for the scheduler that belongs to the sampler."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """`name` is ComfyUI's spelling, `label` WebUI's."""

    name: str
    label: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sampler:
    """`name` is ComfyUI's spelling, `label` WebUI's; `automatic` is what "Automatic" stands for."""

    name: str
    label: str
    automatic: str
    aliases: tuple[str, ...] = ()


SCHEDULERS = (
    Scheduler("normal", "Normal", aliases=("Uniform",)),
    Scheduler("karras", "Karras"),
)
SAMPLERS = (
    Sampler("euler", "Euler", automatic="normal", aliases=("k_euler",)),
    Sampler("dpmpp_2m", "DPM++ 2M", automatic="karras", aliases=("k_dpmpp_2m",)),
)


def _key(spelling: str) -> str:
    return " ".join(spelling.casefold().split())


def _spellings(row: Sampler | Scheduler) -> tuple[str, ...]:
    return (row.name, row.label, *row.aliases)


_SCHEDULER_OF = {_key(s): row.name for row in SCHEDULERS for s in _spellings(row)}
_SAMPLER_OF: dict[str, tuple[str, str | None]] = {
    _key(f"{row.label} {scheduler.label}"): (row.name, scheduler.name)
    for row in SAMPLERS
    for scheduler in SCHEDULERS
} | {_key(s): (row.name, None) for row in SAMPLERS for s in _spellings(row)}
_AUTOMATIC_OF = {row.name: row.automatic for row in SAMPLERS}


def sampler(spelling: str) -> tuple[str, str | None]:
    """The sampler, and the scheduler where the spelling has it joined ("DPM++ 2M Karras").

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
    """Sampler and scheduler of a request; a scheduler named on its own wins over a joined one."""
    name, joined = sampler(sampler_spelling)
    return name, scheduler(scheduler_spelling) or joined or _AUTOMATIC_OF[name]


def sampler_alone(spelling: str) -> str:
    """The sampler where the scheduler has an input of its own, as in a workflow."""
    name, joined = sampler(spelling)
    if joined is not None:
        raise ValueError("the scheduler is an input of its own")
    return name


def scheduler_alone(spelling: str) -> str:
    """The scheduler where there is no sampler beside it that "Automatic" could ask."""
    name = scheduler(spelling)
    if name is None:
        raise ValueError("Automatic is not known in a workflow")
    return name
