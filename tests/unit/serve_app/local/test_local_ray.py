"""A Ray that is not up in time is tried again, and then told in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from serve_app.local.local_ray import RayDidNotStart, start_persistently

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
    assert (
        told
        == ["Ray once more, since it did not start: The current node timed out during startup."] * 2
    )


def test_it_is_given_up_in_a_sentence() -> None:
    done: list[str] = []
    with pytest.raises(RayDidNotStart, match=r"in 3 tries: The current .* very busy") as end:
        start_persistently(failing(9, done), stop=lambda: done.append("stop"), on_retry=done.append)
    assert "Raylet failed" not in str(end.value)
    assert done[-1] == "stop"


def test_ctrl_c_is_no_reason_to_try_again() -> None:
    def start() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_persistently(start, stop=pytest.fail, on_retry=pytest.fail)
