"""What a run showed, as a table for a terminal."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from events.types import Cancelled, Completed, Event, Failed, Started
from tests.faults.checker.history import Answer, Fault, Folded
from tests.faults.checker.invariants import charged_attempts

_SHOWN = 12
"""Violations of one invariant that are written out."""


def table(run: Folded, found: Mapping[str, Sequence[str]]) -> str:
    return "\n".join([*_faults(run), "", *_jobs(run), "", *_invariants(found)])


def recovery_s(run: Folded, fault: Fault) -> float:
    """Seconds from the begin of a fault until a job that started after it was completed; infinite
    where none was.
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
    """Seconds from the begin of a fault until a job was accepted; infinite where none was."""
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


def _jobs(run: Folded) -> Iterator[str]:
    answers = Counter(
        _named(answer)
        for submission in run.history.submissions.values()
        for answer in submission.answers
    )
    yield f"answers to {len(run.history.submissions)} submissions: {_counted(answers)}"
    ends = Counter(
        "erased" if job.erased else type(job.end).__name__.lower() for job in run.jobs.values()
    )
    yield f"jobs stored: {len(run.jobs)}, accepted: {_accepted(run)}; ends: {_counted(ends)}"
    messages = Counter(
        job.end.message[:90]
        for job in run.jobs.values()
        if isinstance(job.end, Failed | Cancelled) and not job.erased
    )
    for message, count in messages.most_common(8):
        yield f"  {count:>5}  {message}"
    tries = Counter(call.answered or "closed" for call in run.history.calls)
    deliveries = [run.delivery(job_id) for job_id in run.delivery_events]
    delivered = sum(each.delivered for each in deliveries)
    exhausted = sum(each.exhausted for each in deliveries)
    yield f"calls to receivers: {_counted(tries)}; delivered: {delivered}, given up: {exhausted}"
    attempts = Counter(job.attempts for job in run.jobs.values())
    charged = sum(len(charged_attempts(events)) for events in run.events.values())
    yield f"jobs by attempts: {_counted(attempts)}; attempts charged: {charged}"


def _accepted(run: Folded) -> int:
    return len({id for each in run.history.submissions.values() for id in each.job_ids})


def _named(answer: Answer) -> str:
    return " ".join(str(each) for each in (answer.status or "no answer", answer.error) if each)


def _counted(counter: Counter[Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counter.items(), key=str))


def _invariants(found: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for name, violations in found.items():
        yield f"{name:<28}{'holds' if not violations else f'BROKEN {len(violations)} times'}"
        yield from (f"    {each}" for each in violations[:_SHOWN])
        if len(violations) > _SHOWN:
            yield f"    and {len(violations) - _SHOWN} more"
