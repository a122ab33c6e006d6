"""Fixtures that every tier may use."""

from hypothesis import settings

from tests.support.bus import bus, nats_server

__all__ = ["bus", "nats_server"]

# A busy machine is slow, not wrong.
settings.register_profile("darkroom", deadline=None)
settings.load_profile("darkroom")
