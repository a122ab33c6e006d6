"""Fixtures that every tier may use."""

from tests.support.bus import bus, nats_server

__all__ = ["bus", "nats_server"]
