"""Which processes the roles have."""

from __future__ import annotations

from actors.roles import ROLES, role_mains
from settings.settings import Settings


def test_one_projection_is_the_role_results_alone() -> None:
    assert role_mains(Settings.load()) == ROLES


def test_further_projections_only_project() -> None:
    mains = role_mains(Settings.load(log_projections=3))
    further = {name: main for name, main in mains.items() if name not in ROLES}
    assert further == dict.fromkeys(("results-2", "results-3"), "actors.roles:run_projection")


def test_further_dispatchers_do_what_the_first_does() -> None:
    mains = role_mains(Settings.load(dispatchers=2))
    assert mains == ROLES | {"dispatcher-2": ROLES["dispatcher"]}
