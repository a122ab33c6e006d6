"""Which processes the roles have."""

from __future__ import annotations

from actors.roles import ROLES, role_mains
from settings.settings import Settings


def test_one_process_each_is_the_roles_alone() -> None:
    assert role_mains(Settings.load()) == ROLES


def further(**settings: int) -> dict[str, str]:
    mains = role_mains(Settings.load(**settings))
    return {name: main for name, main in mains.items() if name not in ROLES}


def test_further_projections_only_project() -> None:
    names = ("results-2", "results-3")
    assert further(log_projections=3) == dict.fromkeys(names, "actors.roles:run_projection")


def test_further_routers_only_route() -> None:
    names = ("router-2", "router-3")
    assert further(log_routers=3) == dict.fromkeys(names, "actors.roles:run_further_router")


def test_further_dispatchers_do_what_the_first_does() -> None:
    assert further(dispatchers=2) == {"dispatcher-2": ROLES["dispatcher"]}
