"""What Ray and Serve are told by the environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from serve_app.local.serve_environment import configure_serve
from settings.http import HttpSettings

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
    configure_serve(HttpSettings(max_wait_s=90.5), tmp_path / "data", range(20000, 20004))
    assert int(environment[HARD_STOP]) > 90.5
