"""Warnings about a setup that is probably not intended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial

from engine.interface import ModelsFolder, ModelsUnavailable

_PERIOD_S = 5.0
_PATIENCE_S = 0.2
"""The longest time in seconds that a readiness request waits for the models folder."""


def variable_warnings(unknown: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the warnings about `unknown` variables, each with the most similar setting, if any."""
    return tuple(
        f"{name} is not a setting" + (f"; did you mean {nearest}?" if nearest else ".")
        for name, nearest in sorted(unknown.items())
    )


def models_warnings(models: ModelsFolder, *, needs_checkpoint: bool = True) -> tuple[str, ...]:
    """Return warnings if the folder is missing, does not respond, or has no checkpoint.

    A service with a ComfyUI install needs no checkpoint, because many models of ComfyUI are none.
    """
    try:
        if not models.exists():
            return (f"The models folder {models.root} (DARKROOM_MODELS_DIR) is missing.",)
        if needs_checkpoint and not models.names("checkpoints"):
            return ("The models folder (DARKROOM_MODELS_DIR) has no checkpoint. Add one.",)
    except ModelsUnavailable as error:
        return (str(error),)
    return ()


class SetupWarnings:
    """The current warnings. The models folder is read at most every `_PERIOD_S` seconds."""

    def __init__(
        self, models: ModelsFolder, variables: Sequence[str], *, needs_checkpoint: bool = True
    ) -> None:
        """`variables` are the warnings about environment variables."""
        self._read = partial(models_warnings, models, needs_checkpoint=needs_checkpoint)
        self._variables = tuple(variables)
        self._last: tuple[str, ...] = ()
        self._next_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def now(self) -> list[str]:
        """Return all warnings. Waits a short time for a new reading of the models folder."""
        if self._reading is None and time.monotonic() >= self._next_at:
            self._reading = asyncio.create_task(self._refresh())
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_PATIENCE_S)
        return [*self._variables, *self._last]

    async def _refresh(self) -> None:
        try:
            self._last = await asyncio.to_thread(self._read)
        finally:
            self._next_at = time.monotonic() + _PERIOD_S
            self._reading = None
