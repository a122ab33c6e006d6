"""Measures the time of a run in each stage of making an image."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Set
from enum import StrEnum

MOST_SHARED_RUNS = 64
"""The largest number of span links of other runs that a clock keeps."""


class Stage(StrEnum):
    LOAD = "load"
    TEXT = "text"
    DENOISE = "denoise"
    VAE = "vae"
    UPSCALE = "upscale"


class StageClock:
    """Adds up, for each stage, the time in which a run waits for device work of that stage.

    Time in which other runs are served counts too. Time in which requests overlap counts once. Only
    the device thread uses the clock.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[Stage, float] = {}
        """The seconds of each stage, in the order in which the stages first ended."""
        self._now = now
        self._open: Counter[Stage] = Counter()
        self._since: dict[Stage, float] = {}
        self._rows = 0
        self._calls = 0.0
        self.last_rows: int | None = None
        """The number of rows in the last denoising call, including rows of other runs. None before
        the first call."""
        self.span_link = ""
        """See `RunOptions`. An empty link is left out."""
        self.runs_in_shared_calls: set[str] = set()
        """The span links of the runs in the calls of this run, including its own link."""

    @property
    def rows_per_call(self) -> float | None:
        """The mean number of rows in a denoising call of this run, with the rows of other runs.

        This is the harmonic mean, weighted by the rows of this run; None without a call.
        """
        return self._rows / self._calls if self._calls else None

    def begin(self, stage: Stage | None) -> None:
        """Note that a request was made. None means that the request has no stage."""
        if stage is not None:
            if not self._open[stage]:
                self._since[stage] = self._now()
            self._open[stage] += 1

    def end(
        self, stage: Stage | None, *, rows: int, call_rows: int, span_links: Set[str] = frozenset()
    ) -> None:
        """Note that a request was answered.

        The request had `rows` of the `call_rows` rows of the call. `span_links` are those of the
        runs in the call.
        """
        if stage is None:
            return
        if len(self.runs_in_shared_calls) < MOST_SHARED_RUNS:
            self.runs_in_shared_calls |= span_links
        self._open[stage] -= 1
        if not self._open[stage]:
            took_s = self._now() - self._since[stage]
            self.seconds[stage] = self.seconds.get(stage, 0.0) + took_s
        if stage is Stage.DENOISE and rows:
            self._rows += rows
            self._calls += rows / call_rows
            self.last_rows = call_rows
