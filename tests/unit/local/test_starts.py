"""How Ray and Serve are started: their environment, a Ray that is not up in time, and limits."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from local.embedded import with_gpus
from local.local_ray import RayDidNotStart, start_persistently
from local.serve_environment import configure_serve
from settings.graph import MAX_COST_WITHOUT_GPU, GraphSettings
from settings.http import HttpSettings
from settings.settings import Settings

LOOPBACK_ALONE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"


@pytest.mark.parametrize(("set_by_operator", "then"), [(None, "0"), ("1", "1")])
def test_ray_listens_on_the_loopback_address_unless_an_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, set_by_operator: str | None, then: str
) -> None:
    environment = {key: value for key, value in os.environ.items() if key != LOOPBACK_ALONE}
    if set_by_operator is not None:
        environment[LOOPBACK_ALONE] = set_by_operator
    monkeypatch.setattr(os, "environ", environment)
    configure_serve(HttpSettings(), tmp_path / "data", range(20000, 20004))
    assert environment[LOOPBACK_ALONE] == then


def test_a_haproxy_that_is_replaced_lives_as_long_as_a_request_may_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment = dict(os.environ)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr("local.serve_environment.MAX_WAIT_S", 90.5)
    configure_serve(HttpSettings(), tmp_path / "data", range(20000, 20004))
    assert int(environment[HARD_STOP]) > 90.5


@pytest.mark.parametrize(
    ("given", "gpus", "max_cost"),
    [
        ({}, 0, MAX_COST_WITHOUT_GPU),
        ({}, 1, GraphSettings().max_cost),
        ({"max_cost": 2000.0}, 0, 2000.0),
        ({"max_cost": 0.0}, 0, 0.0),
    ],
)
def test_a_job_may_cost_less_where_there_is_no_gpu_and_no_setting(
    given: dict[str, float], gpus: int, max_cost: float
) -> None:
    settings = with_gpus(Settings.load(**given), gpus)
    assert settings.graph.max_cost == max_cost
    assert settings.ray.num_gpus == gpus


SLOW = "The current node timed out during startup.\nRaylet failed."


def failing(times: int, done: list[str]) -> Callable[[], None]:
    def start() -> None:
        done.append("start")
        if done.count("start") <= times:
            raise Exception(SLOW)

    return start


def test_it_is_tried_again_and_each_try_is_told() -> None:
    done: list[str] = []
    told: list[str] = []
    start_persistently(failing(2, done), stop=lambda: done.append("stop"), on_retry=told.append)
    assert done == ["start", "stop", "start", "stop", "start"]
    why = "The current node timed out during startup."
    assert told == [f"Ray is started again, because it did not start: {why}"] * 2


def test_it_is_given_up_in_a_sentence() -> None:
    done: list[str] = []
    with pytest.raises(RayDidNotStart, match=r"in 3 attempts: The current .* very busy") as end:
        start_persistently(failing(9, done), stop=lambda: done.append("stop"), on_retry=done.append)
    assert "Raylet failed" not in str(end.value)
    assert done[-1] == "stop"


def test_ctrl_c_is_no_reason_to_try_again() -> None:
    def start() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_persistently(start, stop=pytest.fail, on_retry=pytest.fail)
