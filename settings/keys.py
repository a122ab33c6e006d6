"""API keys, and what one may do that sets no limit of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.fields import HostPatterns, Names
from settings.group import Group

LONGEST_GRACE_S = 366 * 86400.0
"""The longest that an old key may still work after a rotation."""


class KeySettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_KEY_")

    cache_s: Annotated[float, Field(gt=0, lt=10)] = 5.0
    """How long a replica remembers a key; a revocation holds after this."""
    rotation_grace_s: Annotated[float, Field(ge=0, le=LONGEST_GRACE_S)] = 7 * 86400.0
    """How long a key still works after its rotation."""
    rate_per_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Requests a second of a key that has no rate of its own; 0: any number."""
    burst: PositiveInt = 20
    """Requests at once, after a pause, of a key that has no burst of its own."""
    max_open_jobs: Annotated[int, Field(ge=0)] = 0
    """Jobs that wait or run of a key that has no number of its own; 0: any number."""
    endpoints: Names = ("*",)
    """Endpoints of a key that has no list of its own; `*`: any."""
    callback_hosts: HostPatterns = ("*",)
    """The same of hosts that are called back; `*.example.com`: every name below it."""
