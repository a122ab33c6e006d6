"""Fixtures that every tier may use."""

import os

from hypothesis import settings

from tests.support.bus import bus, nats_server

__all__ = ["bus", "nats_server"]

# Before torch is loaded: its threads must not spin while other tests' processes need the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A busy machine is slow, not wrong.
settings.register_profile("darkroom", deadline=None)
settings.load_profile("darkroom")
