"""The results of a load: latencies from the intended time of each job, their percentiles, and
goodput.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_TIMED = ("queue", "load", "text", "denoise", "vae", "store")
"""The stages that the service reports, in the order of a job's life."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One job of a load; times are seconds from the start of the load."""

    intended_s: float
    sent_s: float
    ended_s: float
    is_good: bool = True
    """Whether the job completed."""
    stage_ms: Mapping[str, float] = field(default_factory=dict)
    """The times of the stages, from `Server-Timing`."""
    rows_per_call: float | None = None

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.intended_s


@dataclass(frozen=True, slots=True)
class Load:
    """All jobs of a load that lasted for `time_s` seconds."""

    samples: Sequence[Sample]
    time_s: float

    def latency_s(self, percent: float) -> float:
        return percentile([each.latency_s for each in self.samples], percent)

    def late_s(self, percent: float) -> float:
        """The delay with which the benchmark itself sent the jobs. With a large delay the figures
        are useless.
        """
        return percentile([each.sent_s - each.intended_s for each in self.samples], percent)

    def goodput_per_s(self, bound_s: float) -> float:
        """Jobs per second that completed within the bound."""
        good = sum(each.is_good and each.latency_s <= bound_s for each in self.samples)
        return good / self.time_s

    def good_share(self, bound_s: float) -> float:
        """The share of the sent jobs that completed within the bound."""
        return self.goodput_per_s(bound_s) * self.time_s / max(1, len(self.samples))

    @property
    def failed(self) -> int:
        return sum(not each.is_good for each in self.samples)

    def stage_ms(self) -> dict[str, float]:
        """The median time of each stage, over the jobs that report their stages."""
        told = [each.stage_ms for each in self.samples if each.stage_ms]
        return {
            name: percentile([stages.get(name, 0.0) for stages in told], 50) if told else math.nan
            for name in _TIMED
        }

    def rows_per_call(self) -> float:
        """The harmonic mean over the jobs. It is the mean over the calls if all jobs have the same
        number of rows.
        """
        return harmonic_mean(each.rows_per_call for each in self.samples if each.rows_per_call)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile by nearest rank, which is an observed value, or nan if there are no
    values.
    """
    if not values:
        return math.nan
    rank = math.ceil(percent / 100 * len(values))
    return sorted(values)[max(rank, 1) - 1]


def harmonic_mean(values: Iterable[float]) -> float:
    inverse = [1 / value for value in values]
    return len(inverse) / sum(inverse) if inverse else math.nan


def parse_server_timing(header: str) -> tuple[dict[str, float], float | None]:
    """Return the milliseconds of each stage and the rows per call from a `Server-Timing` header."""
    stage_ms: dict[str, float] = {}
    rows = None
    for metric in filter(None, (each.strip() for each in header.split(","))):
        name, *parameters = metric.split(";")
        values = dict(each.strip().partition("=")[::2] for each in parameters)
        if "dur" in values:
            stage_ms[name] = float(values["dur"])
        elif name == "batch":
            rows = float(values["desc"].strip('"').split()[0])
    return stage_ms, rows
