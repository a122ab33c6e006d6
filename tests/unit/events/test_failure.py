"""Why a job failed, for programs: from the event that ends it to what its caller is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actors.worker.failure import code_of
from engine.errors import (
    CheckpointUnavailable,
    DeviceFailed,
    EngineError,
    FieldError,
    GraphInvalid,
    NodeFailed,
    OutOfMemory,
    ParametersInvalid,
    TooLarge,
)
from events.decisions import FailAttempt, Start, decide
from events.job import Job
from events.result import (
    FailureCode,
    State,
    error_of,
    failure_code,
    is_retryable,
    state_of,
)
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    EventData,
    Failed,
    Started,
)
from events.wire.cloud_events import decode, encode
from tests.support.events import START, folded, submitted

ROOT = Path(__file__).parents[3]
STARTED = Started(attempt=1, actor="a")
NO_ROOM = AttemptFailed(attempt=1, message="No room.", blame=Blame.SUSPECT, code="out_of_memory")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (GraphInvalid("no_prompt", "No prompt."), "invalid_input"),
        (ParametersInvalid(()), "invalid_input"),
        (ParametersInvalid((FieldError("value_not_in_list", "gone", "x"),)), "model_unavailable"),
        (
            GraphInvalid("x", "x", node_errors={"3": {"errors": [{"type": "value_not_in_list"}]}}),
            "model_unavailable",
        ),
        (TooLarge("Too many."), "invalid_input"),
        (CheckpointUnavailable("No such model."), "model_unavailable"),
        (OutOfMemory(), "out_of_memory"),
        (NodeFailed("3", "KSampler", "no"), "node_failed"),
        (DeviceFailed("lost", True), "engine_failed"),
        (EngineError("?"), "engine_failed"),
    ],
)
def test_each_error_of_the_engine_has_a_code(error: EngineError, code: str) -> None:
    assert code_of(error) == code


def test_an_attempt_hands_its_code_to_the_end_that_it_makes() -> None:
    final = FailAttempt("a", "No room.", final=True, code="out_of_memory")
    [end] = decide(final, folded([submitted(), STARTED]))
    assert end == Failed(message="No room.", code="out_of_memory")


def test_the_last_attempt_says_why_a_job_was_given_up() -> None:
    def last(*events: EventData) -> str | None:
        start = Start("b", max_attempts=1, max_attempts_total=1, now=START)
        [end] = decide(start, folded([submitted(), STARTED, *events]))
        assert isinstance(end, Failed)
        return end.code

    assert last(NO_ROOM) == "out_of_memory"
    assert last(NO_ROOM, DispatchFailed(failure=1, message="It died.")) == "engine_failed"
    assert last() == "engine_failed"  # it broke off without a word


@pytest.mark.parametrize(
    ("end", "code", "retryable"),
    [
        (Cancelled(), "cancelled", False),
        (Failed(message="Late.", code="timeout"), "timeout", True),
        (Failed(message="It died.", code="engine_failed"), "engine_failed", True),
        (Failed(message="No room.", code="out_of_memory"), "out_of_memory", False),
        (Failed(message="Bad."), "unknown", False),
        (Failed(message="Stop.", dead_letter=DeadLetter.QUARANTINED), "quarantined", False),
        (Failed(message="?", code="of_a_later_version"), "of_a_later_version", False),
    ],
)
def test_a_caller_is_told_the_code_and_whether_to_try_again(
    end: Failed | Cancelled, code: str, retryable: bool
) -> None:
    assert (failure_code(end), is_retryable(code)) == (code, retryable)
    error = error_of(end)
    assert error is not None
    assert error.model_dump() == {"code": code, "retryable": retryable}
    assert error_of(Completed(images=1)) is error_of(None) is None


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), State.QUEUED),
        ((STARTED,), State.RUNNING),
        ((STARTED, CancelRequested()), State.RUNNING),
        ((STARTED, NO_ROOM), State.QUEUED),
        ((STARTED, Completed(images=0)), State.COMPLETED),
        ((Failed(message="Late."),), State.FAILED),
        ((Cancelled(),), State.CANCELLED),
    ],
)
def test_a_job_tells_whether_it_waits_or_runs(events: tuple[EventData, ...], state: State) -> None:
    job: Job = folded([submitted(), *events])
    assert state_of(job) is state


def test_a_version_that_knows_no_code_reads_the_end_and_one_that_does_reads_its_end() -> None:
    """Members that are unknown are passed over; those that are absent have their defaults."""
    golden = ROOT / "tests" / "golden" / "events" / "darkroom.job.failed.v1.code.json"
    stored = json.loads(golden.read_text())
    assert stored["data"].pop("code") == "out_of_memory"
    older = decode(json.dumps(stored).encode())
    assert older.data == Failed(message="No room.")
    assert b"code" not in encode(older)


def test_every_code_is_documented() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert [code for code in FailureCode if f"| `{code}` |" not in text] == []
