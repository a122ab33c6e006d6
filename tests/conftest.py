"""Fixtures that every tier may use."""

import os

from hypothesis import settings

from tests.support.bus import bus, nats_server

__all__ = ["bus", "nats_server"]

# Before torch is loaded: its threads must not spin long while other processes need the cores.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
if "PYTEST_XDIST_WORKER" in os.environ:  # a process for each core: none needs threads besides
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is slow, not wrong.
settings.register_profile("darkroom", deadline=None)
settings.load_profile("darkroom")
