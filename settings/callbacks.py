"""Callbacks to receivers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.fields import Networks, Ports, ProxyUrl, Seconds
from settings.group import Group


class CallbackSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_CALLBACK_")

    allow_networks: Networks = ()
    """Networks that callbacks may go to beside public addresses (JSON list or commas)."""
    require_https: bool = False
    """Refuse callback addresses without TLS."""
    ports: Ports = ()
    """Ports that callbacks may go to; empty: 80, 443 and 1024 up."""
    proxy: ProxyUrl = None
    """Outbound proxy of callbacks (`http://[user:password@]host:port`); it must take CONNECT."""
    connect_timeout_s: PositiveFloat = 3.0
    """To connect to a receiver."""
    timeout_s: PositiveFloat = 15.0
    """For one whole try."""
    max_answer_bytes: PositiveInt = 16 * 1024
    """Of a receiver's answer this much is read."""
    delays_s: Seconds = (0, 5, 30, 120, 600, 1800, 3600, 10800, 21600, 43200)
    """Pauses before the first and each further try."""
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Each pause is longer or shorter by up to this part."""
    in_flight: PositiveInt = 256
    """Deliveries at once."""
    per_host: PositiveInt = 4
    """Deliveries at once to one host."""
    breaker_failures: PositiveInt = 4
    """A host that fails this often in a row is left alone: its breaker opens."""
    breaker_open_s: PositiveFloat = 15.0
    """How long the first time; then one delivery is tried, and each failure doubles it."""
    breaker_longest_s: PositiveFloat = 600.0
    """Longest time that a host is left alone before the next such try."""
    withheld_s: PositiveFloat = 172_800.0
    """A delivery that breakers have kept from its host for this long is given up."""
    secrets: PositiveInt = 3
    """Most signatures of a delivery: its key's, then those of the owner's newest other keys."""
    tests_per_minute: PositiveInt = 10
    """Test callbacks that one owner may send."""

    @property
    def longest_pauses_s(self) -> float:
        """All pauses before the tries of a delivery together, each at its longest."""
        return (1 + self.jitter) * sum(self.delays_s)
