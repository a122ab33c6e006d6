"""Which processes the roles have."""

from __future__ import annotations

from actors.roles import ROLES, role_mains
from settings.settings import Settings


def test_one_projection_is_the_role_results_alone() -> None:
    assert role_mains(Settings()) == ROLES


def test_further_projections_only_project() -> None:
    settings = Settings()
    log = settings.log.model_copy(update={"projections": 3})
    mains = role_mains(settings.model_copy(update={"log": log}))
    further = {name: main for name, main in mains.items() if name not in ROLES}
    assert further == dict.fromkeys(("results-2", "results-3"), "actors.roles:run_projection")
