"""How long a run is in each stage of making an image."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Set
from enum import StrEnum

MOST_BESIDE = 64
"""How many runs are noted of those that were in the same calls."""


class Stage(StrEnum):
    LOAD = "load"
    TEXT = "text"
    DENOISE = "denoise"
    VAE = "vae"
    UPSCALE = "upscale"


class StageClock:
    """Adds up, for each stage, the time in which a run waits for device work of that stage.

    So the turns of other runs count, and requests that overlap count once. Only the device thread
    uses it.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: seconds."""
        self.seconds: dict[Stage, float] = {}
        """Of each stage that there was, in the order in which they ended first."""
        self._now = now
        self._open: Counter[Stage] = Counter()
        self._since: dict[Stage, float] = {}
        self._rows = 0
        self._calls = 0.0
        self.last_rows: int | None = None
        """Rows in the last denoising call, those of other runs included; None before the first."""
        self.name = ""
        """By which it is known to the runs that share calls with it; empty: it is not."""
        self.beside: set[str] = set()
        """The names of the runs that were in its calls, its own included."""

    @property
    def rows_per_call(self) -> float | None:
        """Rows in a denoising call of this run, those of other runs included; None without a call.

        It is the harmonic mean: so the mean of jobs that have as many rows each is that of calls.
        """
        return self._rows / self._calls if self._calls else None

    def begin(self, stage: Stage | None) -> None:
        """A request was made; its work belongs to no stage where that is None."""
        if stage is not None:
            if not self._open[stage]:
                self._since[stage] = self._now()
            self._open[stage] += 1

    def end(
        self, stage: Stage | None, *, rows: int, call_rows: int, names: Set[str] = frozenset()
    ) -> None:
        """It was answered: `rows` of the `call_rows` of its call were its own. `names`: of the runs
        in it.
        """
        if stage is None:
            return
        if len(self.beside) < MOST_BESIDE:
            self.beside |= names
        self._open[stage] -= 1
        if not self._open[stage]:
            took_s = self._now() - self._since[stage]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + took_s
        if stage is Stage.DENOISE and rows:
            self._rows += rows
            self._calls += rows / call_rows
            self.last_rows = call_rows
