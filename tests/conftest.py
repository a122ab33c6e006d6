"""Fixtures that every tier may use."""

import gc
import os

import pytest
from hypothesis import settings

from tests.support.bus import bus, nats_server
from tests.support.patience import FACTOR

__all__ = ["bus", "nats_server"]

# Before torch is loaded: its threads must not spin long while other processes need the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core: none needs threads besides
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is slow, not wrong.
settings.register_profile("darkroom", deadline=None)
settings.load_profile("darkroom")


def pytest_report_header() -> str:
    return f"limits are stretched by {FACTOR:g}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    usual_s = float(config.getoption("timeout") or config.getini("timeout"))
    for item in items:
        own = item.get_closest_marker("timeout")
        limit_s = float(own.args[0]) if own else usual_s
        item.add_marker(pytest.mark.timeout(FACTOR * limit_s), append=False)


@pytest.fixture(autouse=True, scope="module")
def lasting_objects_are_left_alone() -> None:
    """Collections of garbage do not look at what is there by now: to look at all that thousands of
    tests have loaded takes a second, during which the clocks of a test go on.
    """
    gc.collect()
    gc.freeze()
