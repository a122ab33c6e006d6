"""What slots were given is found by its job, however much there is."""

from __future__ import annotations

from typing import cast

from actors.waiting.given import Given
from actors.waiting.in_hand import Held
from actors.waiting.turns import Waiting
from events.queue import QueueEntry

NO_ENTRY = cast(QueueEntry, None)  # nobody asks for it here


def held(job_id: str) -> Held:
    return Held(NO_ENTRY, Waiting(job_id, "alice"), reader=0, attempts=0, job=None, read_at=0.0)


def test_a_job_that_was_given_twice_is_there_until_both_have_ended() -> None:
    given, first, again = Given(), held("a"), held("a")
    given.add(first)
    given.add(again)
    assert set(given.of("a")) == {first, again}
    given.remove(first)
    assert first not in given
    assert again in given
    given.remove(again)
    assert not given.of("a")


def test_a_look_at_one_job_looks_at_no_other() -> None:
    given, looks = Given(), 0

    class Counted(Held):
        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return self is other

        __hash__ = object.__hash__

    for number in range(1000):
        given.add(Counted(NO_ENTRY, Waiting(f"job-{number}", "alice"), 0, 0, None, 0.0))
    assert len(given.of("job-7")) == 1
    assert not given.of("another")
    assert looks == 0
