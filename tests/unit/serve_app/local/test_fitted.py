"""What a machine without a GPU is asked for at most."""

from __future__ import annotations

import pytest

from serve_app.local.embedded import fitted
from settings.graph import MAX_COST_WITHOUT_GPU, GraphSettings
from settings.settings import Settings


@pytest.mark.parametrize(
    ("given", "has_gpu", "max_cost"),
    [
        ({}, False, MAX_COST_WITHOUT_GPU),
        ({}, True, GraphSettings().max_cost),
        ({"max_cost": 2000.0}, False, 2000.0),
        ({"max_cost": 0.0}, False, 0.0),
    ],
)
def test_a_job_may_cost_less_where_there_is_no_gpu_and_no_setting(
    given: dict[str, float], has_gpu: bool, max_cost: float
) -> None:
    settings = Settings.load(**given)
    assert fitted(settings, has_gpu=has_gpu).graph.max_cost == max_cost
