"""The invariants of every history, as pure functions that yield descriptions of violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise

from events.job import Job, fold
from events.result import status_of
from events.types import (
    Cancelled,
    Completed,
    Erased,
    Event,
    Failed,
    ImageStored,
    Started,
)
from tests.faults.checker.history import Answer, Fault, Folded, job_as_json

_ENDS = (Completed, Failed, Cancelled)


def ends_once(run: Folded) -> Iterator[str]:
    """I1: each accepted job reaches exactly one end, and its result is readable."""
    for marker, submission in run.history.submissions.items():
        ids = submission.job_ids | set(run.by_marker.get(marker, ()))
        if len(ids) > 1:
            yield f"{marker} was sent as one request and has the jobs {sorted(ids)}"
        for job_id in submission.job_ids - run.jobs.keys():
            yield f"{job_id} ({marker}) was answered with 202 and is not in the log"
    for job_id, events in run.events.items():
        yield from _ends_of(job_id, events)
    for job_id, times in Counter(run.history.not_found).items():
        yield f"{job_id} was answered with 202, and with 404 after that {times} times"
    for job_id, (code, status) in run.history.results.items():
        job = run.jobs.get(job_id)
        wanted = _wanted_result(job)
        if (code, status) != wanted:
            yield f"{job_id}: GET result answers {code} with status {status}, not {wanted}"


def _wanted_result(job: Job | None) -> tuple[int, int | None]:
    return (404, None) if job is None or job.erased else (200, status_of(job.end).value)


def _ends_of(job_id: str, events: list[Event]) -> Iterator[str]:
    ends = [event for event in events if isinstance(event.data, _ENDS)]
    is_erased = bool(events) and isinstance(events[-1].data, Erased)
    if not ends and not is_erased:
        yield f"{job_id} has no end: {_names(events)}"
    if len(ends) > 1:
        yield f"{job_id} has {len(ends)} ends: {_names(events)}"
    if ends and any(
        event.version > ends[0].version and not isinstance(event.data, Erased) for event in events
    ):
        yield f"{job_id} goes on after its end: {_names(events)}"
    stored = Counter(event.data.index for event in events if isinstance(event.data, ImageStored))
    for index, count in stored.items():
        if count > 1:
            yield f"{job_id} published image {index} {count} times"


def has_no_gap(run: Folded) -> Iterator[str]:
    """I2: the versions of a job and its delivery are consecutive, and no event is stored twice."""
    for kind, histories in (("job", run.events), ("delivery", run.delivery_events)):
        for job_id, events in histories.items():
            versions = [event.version for event in events]
            is_cut = bool(events) and isinstance(events[-1].data, Erased)
            if any(late != early + 1 for early, late in pairwise(versions)):
                yield f"{job_id}: the versions of its {kind} are {versions}"
            elif versions and versions[0] != 1 and not is_cut:
                yield f"{job_id}: its {kind} begins with version {versions[0]}"
            if len({event.id for event in events}) < len(events):
                yield f"{job_id}: an event of its {kind} is stored twice"


def read_model_is_the_fold(run: Folded) -> Iterator[str]:
    """I3: a row equals the fold of its events, and nothing but the end remains of erased jobs."""
    for job_id, job in run.jobs.items():
        row = run.history.rows.get(job_id)
        if row is None:
            yield f"{job_id} has no row"
            continue
        folded = job_as_json(job)
        if different := sorted(name for name in folded if row.get(name) != folded[name]):
            name = different[0]
            yield f"{job_id}: {name} is {row.get(name)!r} in its row and {folded[name]!r} folded"
    for job_id in run.history.rows.keys() - run.jobs.keys():
        yield f"{job_id} has a row and no event"
    for job_id in run.history.erased:
        if [type(event.data) for event in run.events.get(job_id, [])] != [Erased]:
            yield f"{job_id} was erased and still has {_names(run.events.get(job_id, []))}"
        if job_id in run.history.deliveries:
            yield f"{job_id} was erased and still has events of its delivery"


def callbacks_end(run: Folded) -> Iterator[str]:
    """I4: each callback ends, and all its attempts have one id, which no other callback has."""
    answered = {call.job_id for call in run.history.calls if (call.answered or 500) < 300}
    for job_id, job in run.jobs.items():
        if job.end is None or job.erased or job.submitted.callback_url is None:
            continue
        delivery = run.delivery(job_id)
        if not delivery.ended:
            yield f"{job_id}: its callback has not ended after {delivery.attempts} tries"
        elif delivery.delivered and job_id not in answered:
            yield f"{job_id}: its callback counts as delivered, and no receiver took it"
    yield from _ids_of_calls(run)


def _ids_of_calls(run: Folded) -> Iterator[str]:
    ids: dict[str, set[str]] = defaultdict(set)
    for call in run.history.calls:
        ids[call.job_id].add(call.webhook_id)
        if not call.is_signed:
            yield f"{call.job_id}: a call without a valid signature"
    for job_id, found in ids.items():
        if len(found) > 1:
            yield f"{job_id} was called back under {sorted(found)}"
    for webhook_id, count in Counter(id for found in ids.values() for id in found).items():
        if count > 1:
            yield f"{count} jobs were called back under {webhook_id}"
    wanting = {id for id, job in run.jobs.items() if job.submitted.callback_url or job.erased}
    for job_id in ids.keys() - wanting:
        yield f"{job_id} was called back and did not ask for it"


def forbidden_is_left_alone(run: Folded) -> Iterator[str]:
    """I5: no connection was made to a forbidden address."""
    for address in run.history.forbidden_dials:
        yield f"a connection came to {address}"


def refused_left_nothing(run: Folded) -> Iterator[str]:
    """I6: nothing was stored of a submission that was certainly refused."""
    for marker, submission in run.history.submissions.items():
        is_refused = submission.answers and all(map(_is_refusal, submission.answers))
        if is_refused and (ids := run.by_marker.get(marker)):
            answers = [(each.status, each.error) for each in submission.answers]
            yield f"{marker} was answered {answers} and has the job {ids[0]}"


def _is_refusal(answer: Answer) -> bool:
    if answer.status == 503:
        return answer.error != "outcome_unknown"
    return answer.status is not None and 400 <= answer.status < 500


def nobody_is_blamed_for_others(run: Folded) -> Iterator[str]:
    """I7: a harmless job does not fail, and no attempt of it is blamed on it.

    A job that was alone on an engine that a fault killed cannot be distinguished from a cause.
    """
    for job_id, events in run.events.items():
        submission = run.submission_of.get(job_id)
        if submission is None or submission.is_guilty:
            continue
        charged = charged_attempts(events)
        unfair = [each for each in charged if not _may_be_charged(each, run.history.faults)]
        for attempt, began, ended in unfair:
            yield f"{job_id}: attempt {attempt.data.attempt}, {ended - began:.0f} s, was charged"
        end = run.jobs[job_id].end if job_id in run.jobs else None
        if isinstance(end, Failed) and not charged and not _lacked_memory(events, run):
            yield f"{job_id} failed: {end.message}"


def charged_attempts(events: list[Event]) -> list[tuple[Event, float, float]]:
    """Return the `Started` of each blamed attempt, with the times of its start and end."""
    charged: list[tuple[Event, float, float]] = []
    job: Job | None = None
    started: Event | None = None
    for event in events:
        after = fold([event], job)
        before = job.blamed_attempts if job else 0
        if after and after.blamed_attempts > before and started is not None:
            charged.append((started, started.time.timestamp(), event.time.timestamp()))
        if isinstance(event.data, Started):
            started = event
        job = after
    return charged


_BREAKS_ATTEMPTS = ("engine", "job", "node", "nats", "leader", "answers", "acks", "log", "machine")
"""Prefixes of the kinds of faults that end an attempt or make its actor look dead."""


def _may_be_charged(charged: tuple[Event, float, float], faults: list[Fault]) -> bool:
    started, began, ended = charged
    assert isinstance(started.data, Started)
    return bool(started.data.exclusive) and any(
        fault.kind.startswith(_BREAKS_ATTEMPTS)
        and fault.began < ended
        and (fault.ended or fault.began) > began
        for fault in faults
    )


def _lacked_memory(events: list[Event], run: Folded) -> bool:
    """Whether the job ended while a fault limited the memory of its engine."""
    ended = events[-1].time.timestamp()
    return any(
        fault.kind == "engine_memory" and fault.began < ended < (fault.ended or fault.began) + 5
        for fault in run.history.faults
    )


def nothing_leaks(run: Folded) -> Iterator[str]:
    """I8: no process, placement group, consumer, message, file or port is left."""
    yield from run.history.leftovers


def verify_agrees(run: Folded) -> Iterator[str]:
    """The report of `darkroom verify`, which reads the same stores independently."""
    yield from run.history.disagreements


INVARIANTS: dict[str, Callable[[Folded], Iterator[str]]] = {
    "I1 every 202 ends once": ends_once,
    "I2 versions without a gap": has_no_gap,
    "I3 read model = fold": read_model_is_the_fold,
    "I4 every callback ends": callbacks_end,
    "I5 no forbidden address": forbidden_is_left_alone,
    "I6 a refusal leaves no job": refused_left_nothing,
    "I7 nobody is blamed": nobody_is_blamed_for_others,
    "I8 nothing leaks": nothing_leaks,
    "darkroom verify": verify_agrees,
}


def violations(run: Folded) -> dict[str, list[str]]:
    """Return the violations of each invariant; an empty list if it holds."""
    return {name: list(check(run)) for name, check in INVARIANTS.items()}


def _names(events: list[Event]) -> list[str]:
    return [event.data.type_name.split(".")[-2] for event in events]
