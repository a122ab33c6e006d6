"""How large a graph may be, and what it makes."""

from __future__ import annotations

from pydantic import PositiveInt
from pydantic_settings import SettingsConfigDict

from settings.group import Group


class GraphSettings(Group):
    model_config = SettingsConfigDict(env_prefix="DARKROOM_")

    max_nodes: PositiveInt = 1000
    """Most nodes of a graph."""
    max_prompt_chars: PositiveInt = 32_768
    """Longest text of a node."""
    max_side_px: PositiveInt = 4096
    """Longest side of an image."""
    max_batch: PositiveInt = 16
    """Most images of one batch."""
