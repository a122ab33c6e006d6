"""Which processes the roles have, and what each runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from settings.settings import Settings


@dataclass(frozen=True, slots=True)
class RoleMain:
    """What a process of a role runs."""

    path: str
    """By import path: a role's process finds its own, and nothing has to travel."""
    number: int = 1
    """Which of several that are alike; given to it from the second on."""


ROLES = {
    "router": RoleMain("actors.roles:run_router"),
    "results": RoleMain("actors.roles:run_results"),
    "dispatcher": RoleMain("actors.roles:run_lasting_dispatcher"),
    "callbacks": RoleMain("actors.roles:run_callbacks"),
}


def role_mains(settings: Settings) -> Mapping[str, RoleMain]:
    """By the names of the processes."""
    further_router = RoleMain("actors.roles:run_further_router")
    projection = RoleMain("actors.roles:run_projection")
    mains = dict(ROLES)
    for number in range(2, settings.log.routers + 1):
        mains[f"router-{number}"] = further_router
    for number in range(2, settings.log.projections + 1):
        mains[f"results-{number}"] = projection
    for number in range(2, settings.dispatch.dispatchers + 1):
        mains[f"dispatcher-{number}"] = ROLES["dispatcher"]
    for number in range(2, settings.callbacks.processes + 1):
        mains[f"callbacks-{number}"] = RoleMain("actors.roles:run_callbacks", number)
    return mains
