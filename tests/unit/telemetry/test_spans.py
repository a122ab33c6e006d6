"""The spans of a job, made from its events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from events.delivery_policy import SendResult
from events.job_cost import Timing
from events.result import FailureCode
from events.types import AttemptFailed, Blame, Completed, Failed, Started
from telemetry.tracing.ids import TraceIds
from telemetry.tracing.spans import Span, accept_spans, callback_spans
from tests.support.events import JOB_ID, START, image, submitted
from tests.support.telemetry.traces import CALLER, SAMPLED, TRACE, UNWANTED, told

TIMING = Timing(stage_s={"text": 0.25, "denoise": 0.5}, rows_per_call=4.0, steps=20)
OTHER = f"{TRACE}-{CALLER}"


def second(span: Span) -> tuple[float, float]:
    return (span.begin - START).total_seconds(), (span.end - START).total_seconds()


def tree(spans: Sequence[Span], parent: str | None, depth: int = 0) -> list[str]:
    """Names by depth, in the order of their beginning."""
    lines: list[str] = []
    for each in sorted((s for s in spans if s.parent == parent), key=lambda s: (s.begin, s.end)):
        lines += [f"{'  ' * depth}{each.name}", *tree(spans, each.id, depth + 1)]
    return lines


def test_a_job_is_one_tree_from_the_request_to_the_callback() -> None:
    job, _, spans = told(
        submitted(request={"prompt": "secret"}),
        Started(attempt=1, actor="a", given_at=START + timedelta(seconds=0.75)),
        image(0),
        Completed(images=1, timing=TIMING, beside=(OTHER,)),
    )
    spans += accept_spans(job, began=START - timedelta(seconds=1), ended=START)
    taken = SendResult(latency_s=0.5, status=200)
    spans += callback_spans(job, taken, ended=START + timedelta(seconds=90))
    assert tree(spans, None) == [
        "accept",
        "  append",
        "  job",
        "    queue",
        "    dispatch",
        "    attempt",
        "      text",
        "      denoise",
        "    project",
        "    callback",
    ]
    assert {span.trace for span in spans} == {JOB_ID.replace("-", "")}
    by_name = {span.name: span for span in spans}
    assert second(by_name["job"]) == (0, 3)
    assert second(by_name["queue"]) == (0, 0.75)
    assert second(by_name["dispatch"]) == (0.75, 1)
    assert second(by_name["attempt"]) == (1, 3)
    assert second(by_name["text"]) == (1, 1.25)
    assert second(by_name["denoise"]) == (1.25, 1.75)
    assert second(by_name["project"]) == (3, 60)
    assert second(by_name["callback"]) == (89.5, 90)
    assert by_name["denoise"].attributes == {"darkroom.rows_per_call": 4.0, "darkroom.steps": 20}
    assert [moment.name for moment in by_name["attempt"].moments] == ["image stored"]
    assert [moment.name for moment in by_name["job"].moments] == ["end"]
    assert by_name["attempt"].links == (OTHER,)
    assert not any(span.is_error for span in spans)
    assert "secret" not in repr(spans)
    assert "alice" not in repr(spans)


def test_attempts_that_failed_or_were_lost_are_there_with_the_waits_between() -> None:
    _, _, spans = told(
        submitted(),
        Started(attempt=1, actor="a"),
        AttemptFailed(attempt=1, message="no", blame=Blame.SUSPECT),
        Started(attempt=2, actor="b"),
        Started(attempt=3, actor="c"),
        Failed(message="No."),
    )
    attempts = [span for span in spans if span.name == "attempt"]
    assert [span.attributes["darkroom.outcome"] for span in attempts] == [
        "suspect",
        "lost",
        "failed",
    ]
    assert [second(span) for span in spans if span.name == "queue"] == [(0, 1), (2, 3)]
    assert next(span for span in spans if span.name == "job").is_error


def test_the_trace_is_the_callers_where_there_is_one() -> None:
    job, _, spans = told(submitted(), Failed(message="No."), traceparent=SAMPLED)
    accept, _ = accept_spans(job, began=START, ended=START)
    assert (accept.trace, accept.parent) == (TRACE, CALLER)
    assert {span.trace for span in spans} == {TRACE}


def test_what_the_caller_does_not_record_is_not_told() -> None:
    job, _, spans = told(submitted(), Failed(message="No."), traceparent=UNWANTED)
    assert spans == []
    assert accept_spans(job, began=START, ended=START) == []
    assert callback_spans(job, SendResult(latency_s=1, status=200), ended=START) == []


def test_the_same_job_has_the_same_ids_in_every_process() -> None:
    events = (submitted(), Started(attempt=1, actor="a"), Completed(images=0))
    ids = [span.id for span in told(*events)[2]]
    assert ids == [span.id for span in told(*events)[2]]
    assert len(set(ids)) == len(ids)


def test_a_job_that_only_had_to_be_completed_has_no_error() -> None:
    _, _, spans = told(submitted(), Started(attempt=1, actor="a"), Completed(images=0))
    assert not any(span.is_error for span in spans)


def test_the_clock_of_a_dispatcher_may_be_ahead() -> None:
    late = START + timedelta(seconds=9)
    started = Started(attempt=1, actor="a", given_at=late)
    _, _, spans = told(submitted(), started, Failed(message="No.", code=FailureCode.TIMEOUT))
    assert all(span.begin <= span.end for span in spans)
    assert next(s for s in spans if s.name == "job").attributes["darkroom.code"] == "timeout"


def test_a_job_that_was_submitted_again_is_linked_to_the_first() -> None:
    first, _, _ = told(submitted(), Failed(message="No."), traceparent=SAMPLED)
    _, _, spans = told(submitted(retry_of=first.id), Failed(message="No."), traceparent=SAMPLED)
    again = next(span for span in spans if span.name == "job")
    assert again.links == (TraceIds.of(first).job_link,)
    assert again.parent == CALLER
