"""The results of a run as a table for a terminal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from events.types import Completed, Event, Started
from tests.faults.checker.history import Fault, Folded

_SHOWN = 12
"""The number of shown violations of one invariant."""


def table(run: Folded, found: Mapping[str, Sequence[str]]) -> str:
    return "\n".join([*_faults(run), "", *_invariants(found)])


def recovery_s(run: Folded, fault: Fault) -> float:
    """Return the seconds from the start of a fault until a job that started later was completed;
    infinite if there was none.
    """
    ends = [
        event.time.timestamp()
        for events in run.events.values()
        if _started_after(events, fault.began)
        for event in events
        if isinstance(event.data, Completed) and event.time.timestamp() > fault.began
    ]
    return min(ends, default=math.inf) - fault.began


def answered_s(run: Folded, fault: Fault) -> float:
    """Return the seconds from the start of a fault until a job was accepted; infinite if there was
    none.
    """
    accepted = [
        answer.at
        for submission in run.history.submissions.values()
        for answer in submission.answers
        if answer.status == 202 and answer.at > fault.began
    ]
    return min(accepted, default=math.inf) - fault.began


def _started_after(events: Sequence[Event], time: float) -> bool:
    starts = [event for event in events if isinstance(event.data, Started)]
    return bool(starts) and starts[-1].time.timestamp() > time


def _faults(run: Folded) -> Iterator[str]:
    by_kind: dict[str, list[Fault]] = defaultdict(list)
    for fault in run.history.faults:
        by_kind[fault.kind].append(fault)
    yield f"{'fault':<18}{'times':>6}{'missed':>8}   202 again (s)      job done again (s)"
    yield f"{'':<32}   {'median':>7}{'most':>8}   {'median':>7}{'most':>8}"
    for kind, faults in sorted(by_kind.items()):
        hit = [fault for fault in faults if fault.hit]
        cells = "".join(
            f"   {_seconds(times, median):>7}{_seconds(times, max):>8}"
            for times in (
                [answered_s(run, fault) for fault in hit],
                [recovery_s(run, fault) for fault in hit],
            )
        )
        yield f"{kind:<18}{len(faults):>6}{len(faults) - len(hit):>8}{cells}"


def _seconds(times: Sequence[float], of: Callable[[Sequence[float]], float]) -> str:
    finite = [time for time in times if math.isfinite(time)]
    return f"{of(finite):.1f}" if finite else "-"


def _invariants(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, violations in found.items():
        yield f"{name:<28}{'holds' if not violations else f'BROKEN {len(violations)} times'}"
        yield from (f"    {each}" for each in violations[:_SHOWN])
        if len(violations) > _SHOWN:
            yield f"    and {len(violations) - _SHOWN} more"
