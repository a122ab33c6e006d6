from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from statistics import median

import pytest

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.timed_reads import TimedReads, without_waiting

TIMEOUT_S = 0.5


class Files:
    """What reads find. While it hangs, a read does not return."""

    def __init__(self) -> None:
        self.content: str | BaseException = "first"
        self.count = 0
        self._answers = threading.Event()
        self._answers.set()

    def hang(self) -> None:
        self._answers.clear()

    def answer(self) -> None:
        self._answers.set()

    def read(self) -> str:
        self.count += 1
        self._answers.wait()
        if isinstance(self.content, BaseException):
            raise self.content
        return self.content


@pytest.fixture
def files() -> Iterator[Files]:
    files = Files()
    yield files
    files.answer()


def reads(*, ttl_s: float = 0) -> TimedReads:
    return TimedReads(ttl_s=ttl_s, timeout_s=TIMEOUT_S)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "models-folder"]


def wait_for_no_thread() -> None:
    give_up_at = time.monotonic() + 5
    while threads() and time.monotonic() < give_up_at:
        time.sleep(0.001)
    assert threads() == []


def test_what_was_read_is_used_again_for_its_time(files: Files) -> None:
    some = reads(ttl_s=60)
    assert [some.read("a", files.read) for _ in range(3)] == ["first"] * 3
    assert files.count == 1


def test_a_read_that_hangs_answers_what_was_read_before_and_at_once(files: Files) -> None:
    some = reads()
    some.read("a", files.read)
    files.hang()
    files.content = "second"
    assert some.read("a", files.read) == "first"
    times = []
    for _ in range(101):
        began = time.monotonic()
        assert some.read("a", files.read) == "first"
        times.append(time.monotonic() - began)
    assert median(times) < TIMEOUT_S, "no caller waits for a read that is overdue"
    assert len(threads()) == 1, "threads do not pile up"
    files.answer()
    wait_for_no_thread()
    assert some.read("a", files.read) == "second"


def test_what_was_never_read_is_unavailable_while_reads_hang(files: Files) -> None:
    some = reads()
    files.hang()
    with pytest.raises(ModelsUnavailable, match=r"no answer in 0\.5 s"):
        some.read("a", files.read)
    with pytest.raises(ModelsUnavailable):
        some.read("b", files.read)
    assert len(threads()) == 1
    files.answer()
    wait_for_no_thread()
    assert some.read("b", files.read) == "first"


def test_who_asks_for_the_present_is_told_of_a_read_that_hangs(files: Files) -> None:
    some = reads()
    some.read_now("a", files.read)
    files.hang()
    with pytest.raises(ModelsUnavailable):
        some.read_now("a", files.read)


def test_a_read_that_fails_counts_as_one_that_hangs(files: Files) -> None:
    some = reads()
    files.content = OSError(116, "Stale file handle")
    with pytest.raises(ModelsUnavailable, match="Stale file handle"):
        some.read("a", files.read)
    files.content = "first"
    some.read("a", files.read)
    files.content = OSError(5, "Input/output error")
    assert some.read("a", files.read) == "first"


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error", [FileNotFoundError("gone"), CheckpointUnavailable("damaged"), Panic("unwrap")]
)
def test_an_answer_about_a_file_is_no_failure_of_the_folder(
    error: BaseException, files: Files
) -> None:
    some = reads()
    some.read("a", files.read)
    files.content = error
    with pytest.raises(type(error)):
        some.read("a", files.read)
    files.content = "second"
    assert some.read("b", files.read) == "second"


def test_without_waiting_only_what_is_known_is_answered(files: Files) -> None:
    some = reads(ttl_s=60)
    with without_waiting(), pytest.raises(BlockingIOError):
        some.read("a", files.read)
    assert some.read("a", files.read) == "first"
    with without_waiting():
        assert some.read("a", files.read) == "first"
    assert files.count == 1, "the read that was begun is shared"


def test_files_are_read_again_after_a_thread_could_not_start(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = reads()

    def cannot_start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot_start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            some.read("a", files.read)
    assert some.read("a", files.read) == "first"


def test_silence_and_its_end_are_logged_once(
    files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    some = reads()
    some.read("a", files.read)
    files.hang()
    for _ in range(3):
        some.read("a", files.read)
    files.answer()
    wait_for_no_thread()
    assert [record.message for record in caplog.records] == [
        "the models folder does not answer",
        "the models folder answers again",
    ]
