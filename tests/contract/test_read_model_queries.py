"""Queries of the read model, on both databases: SQLite and Postgres."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta, timezone
from typing import Any

from events.ids import new_id
from events.job import fold
from events.result import Status
from events.store.read_model import ReadModel
from events.store.records import OwnerBytes
from events.types import Cancelled, Completed, DeadLetter, Event, Failed, Flavour, Started
from tests.support.database import stored_job
from tests.support.events import MORNING, History, erased, image, submitted

UNDISPATCHABLE, QUARANTINED = DeadLetter.UNDISPATCHABLE, DeadLetter.QUARANTINED


async def test_open_jobs_are_those_of_every_owner_that_have_not_ended(
    model: ReadModel, history: History
) -> None:
    first, second, ended = new_id(), new_id(), new_id()
    history.add(second, submitted(owner="bob"), at=MORNING + timedelta(minutes=1))
    history.add(first, submitted(), Started(attempt=1, actor="a"))
    history.add(ended, submitted(), Cancelled())
    await model.apply(history.events, expected=0)
    assert await model.open_job_ids() == [first, second]


async def test_open_jobs_are_counted_by_owner_and_key(model: ReadModel, history: History) -> None:
    assert await model.usage.open_jobs_by_caller() == (0, {})
    history.add(new_id(), submitted(key_id="ended"), Cancelled())
    await model.apply(history.events, expected=0)
    assert await model.usage.open_jobs_by_caller() == (2, {})
    more = [
        *history.add(new_id(), submitted(key_id="one")),
        *history.add(new_id(), submitted(key_id="two"), Started(attempt=1, actor="a")),
        *history.add(new_id(), submitted(key_id="two")),
        *history.add(new_id(), submitted(key_id="three", owner="bob")),
    ]
    await model.apply(more, expected=2)
    assert await model.usage.open_jobs_by_caller() == (
        7,
        {("alice", "one"): 1, ("alice", "two"): 2, ("bob", "three"): 1},
    )
    assert [await model.usage.open_jobs(owner) for owner in ("alice", "bob", "carol")] == [3, 1, 0]


async def test_several_jobs_are_read_at_once_with_their_requests(
    model: ReadModel, history: History
) -> None:
    first, second = new_id(), new_id()
    history.add(first, submitted(request={"prompt": {"1": {}}}))
    history.add(second, submitted(owner="bob"), Cancelled())
    await model.apply(history.events, expected=0)
    found = await model.jobs_of_ids([second, new_id(), first])
    assert [job.id for job in found] == [second, first]
    assert found == [await model.job(job.id) for job in found]
    assert await model.jobs_of_ids([]) == []


async def test_listing_of_what_has_ended_and_from_a_place_on(
    model: ReadModel, history: History
) -> None:
    ids = [new_id() for _ in range(4)]
    for minute, id in enumerate(ids):
        ends = (Cancelled(),) if minute % 2 else ()
        history.add(id, submitted(), *ends, at=MORNING + timedelta(minutes=minute))
    await model.apply(history.events, expected=0)
    ended = await model.jobs("alice", is_ended=True)
    still_open = await model.jobs("alice", is_ended=False, limit=1, offset=1)
    assert [job.id for job in ended] == [ids[3], ids[1]]
    assert [job.id for job in still_open] == [ids[0]]


async def test_listing_compares_instants_not_clocks_on_the_wall(
    model: ReadModel, history: History
) -> None:
    earlier, later = new_id(), new_id()
    tokyo = timezone(timedelta(hours=9))
    history.add(later, submitted(), at=MORNING + timedelta(hours=1))
    history.add(earlier, submitted(), at=MORNING.astimezone(tokyo))
    await model.apply(history.events, expected=0)
    assert [job.id for job in await model.jobs("alice")] == [later, earlier]


async def test_listing_by_status_flavour_and_endpoint(model: ReadModel, history: History) -> None:
    running, done, failed, cancelled = (new_id() for _ in range(4))
    history.add(running, submitted(flavour=Flavour.WORKFLOW))
    history.add(done, submitted(endpoint="fast"), Completed(images=0))
    history.add(failed, submitted(), Failed(message="No."))
    history.add(cancelled, submitted(flavour=Flavour.WORKFLOW, endpoint="fast"), Cancelled())
    await model.apply(history.events, expected=0)

    async def found(**filters: Any) -> set[str]:
        return {job.id for job in await model.jobs("alice", **filters)}

    assert await found() == {running, done, failed, cancelled}
    assert await found(status=Status.RUNNING) == {running}
    assert await found(status=Status.COMPLETED) == {done}
    assert await found(status=Status.FAILED) == {failed, cancelled}
    assert await found(flavour=Flavour.WORKFLOW) == {running, cancelled}
    assert await found(endpoint="fast") == {done, cancelled}
    assert await found(endpoint="fast", flavour=Flavour.DIFFUSION) == {done}
    assert await found(endpoint="elsewhere") == set()


async def test_pages_have_no_gap_and_no_repeat(model: ReadModel, history: History) -> None:
    """This holds where many jobs were submitted at one instant and new ones come in between."""
    ids = [new_id() for _ in range(11)]
    for number, job_id in enumerate(ids):
        history.add(job_id, submitted(), at=MORNING + timedelta(microseconds=number // 4))
        history.add(new_id(), submitted(owner="bob"), at=MORNING)
    await model.apply(history.events, expected=0)
    whole = [job.id for job in await model.jobs("alice")]
    assert sorted(whole) == sorted(ids)

    seen: list[str] = []
    while page := await model.jobs("alice", limit=3, before=seen[-1] if seen else None):
        assert len(page) == min(3, len(ids) - len(seen))
        seen += [job.id for job in page]
        newer = history.add(new_id(), submitted(), at=MORNING + timedelta(hours=1))
        await model.apply(newer, expected=history.end - 1)
    assert seen == whole


async def test_a_listing_has_no_requests(model: ReadModel, history: History) -> None:
    """A page of large ones would be a hundred MB, read while others wait."""
    job_id = new_id()
    await model.apply(history.add(job_id, submitted(request={"prompt": "red"})), expected=0)
    for [listed] in (await model.jobs("alice"), await model.every_owners_jobs()):
        assert (listed.id, listed.submitted.request) == (job_id, {})
    assert (await stored_job(model, job_id)).submitted.request == {"prompt": "red"}


async def test_another_owners_jobs_are_never_listed(model: ReadModel, history: History) -> None:
    mine, others = new_id(), new_id()
    history.add(mine, submitted(owner="alice"), at=MORNING)
    history.add(others, submitted(owner="bob"), at=MORNING + timedelta(minutes=1))
    await model.apply(history.events, expected=0)
    assert [job.id for job in await model.jobs("alice")] == [mine]
    assert await model.jobs("ALICE") == []
    assert await model.jobs("%") == []
    assert await model.jobs("alice", before=others) == []
    assert await model.jobs("alice", before=new_id()) == []


class TestEveryOwnersJobs:
    async def test_they_are_newest_first_and_filtered(
        self, model: ReadModel, history: History
    ) -> None:
        alices, bobs, fast = new_id(), new_id(), new_id()
        for minute, (id, changes) in enumerate(
            ((alices, {}), (bobs, {"owner": "bob"}), (fast, {"owner": "bob", "endpoint": "fast"}))
        ):
            history.add(id, submitted(**changes), at=MORNING + timedelta(minutes=minute))
        history.add(bobs, Completed(images=0))
        await model.apply(history.events, expected=0)

        async def found(**filters: Any) -> list[str]:
            return [job.id for job in await model.every_owners_jobs(**filters)]

        assert await found() == [fast, bobs, alices]
        assert await found(owner="bob") == [fast, bobs]
        assert await found(status=Status.RUNNING) == [fast, alices]
        assert await found(endpoint="default", owner="bob") == [bobs]
        assert await found(limit=1) == [fast]
        assert await found(before=fast, limit=1) == [bobs]
        assert await found(before=bobs) == [alices]
        assert await found(before=new_id()) == []

    async def test_dead_letters_are_listed_with_their_reasons(
        self, model: ReadModel, history: History
    ) -> None:
        died, stopped, failed = new_id(), new_id(), new_id()
        ends = {died: UNDISPATCHABLE, stopped: QUARANTINED, failed: None}
        for id, dead_letter in ends.items():
            history.add(id, submitted(owner=id), Failed(message=id, dead_letter=dead_letter))
        await model.apply(history.events, expected=0)

        async def found(*dead_letters: DeadLetter) -> set[tuple[str, str]]:
            jobs = await model.every_owners_jobs(dead_letters=dead_letters)
            return {(job.id, job.end.message) for job in jobs if isinstance(job.end, Failed)}

        assert await found(*DeadLetter) == {(died, died), (stopped, stopped)}
        assert await found(QUARANTINED) == {(stopped, stopped)}
        [job] = await model.every_owners_jobs(dead_letters=[UNDISPATCHABLE])
        assert job.end == Failed(message=died, dead_letter=UNDISPATCHABLE)

    async def test_erased_jobs_are_not_among_them(self, model: ReadModel, history: History) -> None:
        job_id = new_id()
        letter = Failed(message="No.", dead_letter=QUARANTINED)
        history.add(job_id, submitted(), letter, erased())
        await model.apply(history.events, expected=0)
        assert await model.every_owners_jobs() == []
        assert await model.every_owners_jobs(dead_letters=list(DeadLetter)) == []


class TestOwnerBytes:
    """The bytes of an owner's jobs in the log, where each event has 300, and in images."""

    def job(self, history: History, job_id: str, owner: str = "alice") -> list[Event]:
        return self.sized(
            history.add(
                job_id,
                submitted(owner=owner),
                Started(attempt=1, actor="a"),
                image(0, size_bytes=2**33),
                image(1, size_bytes=5),
                Completed(images=2),
            )
        )

    def sized(self, events: list[Event]) -> list[Event]:
        return [replace(event, size_bytes=300) for event in events]

    async def test_all_jobs_of_an_owner_are_added_up(
        self, model: ReadModel, history: History
    ) -> None:
        assert await model.usage.kept_bytes("alice") == (0, OwnerBytes())
        first = self.job(history, new_id())
        await model.apply(first[:2], expected=0)
        assert await model.usage.kept_bytes("alice") == (2, OwnerBytes(600, 0))
        await model.apply(first[2:], expected=2)
        assert await model.usage.kept_bytes("alice") == (5, OwnerBytes(1500, 2**33 + 5))
        more = self.job(history, new_id()) + self.job(history, new_id(), "bob")
        await model.apply(more, expected=5)
        assert await model.usage.kept_bytes("alice") == (15, OwnerBytes(3000, 2**34 + 10))
        assert await model.usage.kept_bytes("bob") == (15, OwnerBytes(1500, 2**33 + 5))
        assert await model.usage.kept_bytes("eve") == (15, OwnerBytes())

    async def test_of_an_erased_job_one_event_is_left_and_of_a_removed_one_nothing(
        self, model: ReadModel, history: History
    ) -> None:
        job_id = new_id()
        await model.apply(self.job(history, job_id), expected=0)
        last = self.sized(history.add(job_id, erased()))
        job = fold(last)
        assert job is not None
        await model.erase(job)
        assert await model.usage.kept_bytes("alice") == (5, OwnerBytes(300, 0))
        await model.apply(last, expected=5)
        assert await model.usage.kept_bytes("alice") == (6, OwnerBytes(300, 0))
        await model.remove({job_id: job.position})
        assert await model.usage.kept_bytes("alice") == (6, OwnerBytes())
