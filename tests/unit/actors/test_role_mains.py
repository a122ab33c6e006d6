"""Which processes the roles have."""

from __future__ import annotations

from actors.role_mains import ROLES, RoleMain, role_mains
from settings.settings import Settings


def test_one_process_each_is_the_roles_alone() -> None:
    assert role_mains(Settings.load()) == ROLES


def further(**settings: int) -> dict[str, RoleMain]:
    mains = role_mains(Settings.load(**settings))
    return {name: main for name, main in mains.items() if name not in ROLES}


def test_further_projections_only_project() -> None:
    names, main = ("results-2", "results-3"), RoleMain("actors.roles:run_projection")
    assert further(log_projections=3) == dict.fromkeys(names, main)


def test_further_routers_only_route() -> None:
    names, main = ("router-2", "router-3"), RoleMain("actors.roles:run_further_router")
    assert further(log_routers=3) == dict.fromkeys(names, main)


def test_further_callbacks_know_which_they_are() -> None:
    path = "actors.roles:run_callbacks"
    assert further(callback_processes=3) == {
        "callbacks-2": RoleMain(path, 2),
        "callbacks-3": RoleMain(path, 3),
    }


def test_further_dispatchers_do_what_the_first_does() -> None:
    assert further(dispatchers=2) == {"dispatcher-2": ROLES["dispatcher"]}
