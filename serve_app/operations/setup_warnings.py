"""What an operator has probably set up otherwise than they meant, in sentences."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from engine.errors import ModelsUnavailable
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder

_PERIOD_S = 5.0
_PATIENCE_S = 0.2
"""Nobody who asks whether the service is ready waits longer for a folder that hangs."""


def variable_warnings(unknown: Mapping[str, str | None]) -> tuple[str, ...]:
    """`unknown`: variables that are no settings, and the nearest that is one."""
    return tuple(
        f"{name} is no setting" + (f"; did you mean {nearest}?" if nearest else ".")
        for name, nearest in sorted(unknown.items())
    )


def models_warnings(models: ModelsFolder) -> tuple[str, ...]:
    """Whether the folder is missing, does not answer, or has no checkpoint."""
    try:
        if not models.is_there():
            return (f"The models folder {models.root} (DARKROOM_MODELS_DIR) is missing.",)
        if not models.names(CHECKPOINTS):
            return ("The models folder (DARKROOM_MODELS_DIR) has no checkpoint; add one.",)
    except ModelsUnavailable as error:
        return (str(error),)
    return ()


class SetupWarnings:
    """The warnings as they were a few seconds ago."""

    def __init__(self, models: ModelsFolder, variables: Sequence[str]) -> None:
        """`variables`: the warnings about environment variables."""
        self._read: Callable[[], tuple[str, ...]] = lambda: models_warnings(models)
        self._variables = tuple(variables)
        self._last: tuple[str, ...] = ()
        self._next_at = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def now(self) -> list[str]:
        """All of them. Waits for a fresh look at the models, but not long."""
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
