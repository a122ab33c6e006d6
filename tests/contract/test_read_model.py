"""One suite over both databases: SQLite and Postgres."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, overload

import pytest

from events.database import Database
from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.job import fold
from events.read_model import ReadModel
from events.records import ApiKey, Endpoint, Scope
from events.registry import ApiKeys, Endpoints, Leases
from events.result import Status
from events.types import (
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    End,
    Erased,
    Event,
    Fact,
    Failed,
    Flavour,
    ImageStored,
    Started,
)
from tests.support.jobs import submitted

MORNING = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
ENDS = [Completed(images=1), Failed(message="No such checkpoint."), Cancelled()]


class History:
    """Events as the log hands them out: positions rise over all jobs, versions within each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._versions: Counter[str] = Counter()

    def add(self, job_id: str, *facts: Fact, at: datetime = MORNING) -> list[Event]:
        new: list[Event] = []
        for fact in facts:
            self._versions[job_id] += 1
            new.append(
                Event(
                    id=new_id(),
                    job_id=job_id,
                    version=self._versions[job_id],
                    time=at,
                    fact=fact,
                    position=len(self.events) + len(new) + 1,
                )
            )
        self.events += new
        return new

    @property
    def end(self) -> int:
        return len(self.events)


def image(index: int, *, attempt: int = 1) -> ImageStored:
    return ImageStored(
        index=index,
        attempt=attempt,
        key=f"job/{attempt}/{index}",
        size_bytes=2**33,
        digest="sha256:00",
        width=512,
        height=768,
        seed=2**64 - 1,
    )


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    await database.prepare()
    yield database
    await database.close()


@pytest.fixture
async def other_database(database: Database, database_url: str) -> AsyncIterator[Database]:
    """The same database as another process sees it."""
    other = Database(database_url)
    yield other
    await other.close()


@pytest.fixture
def model(database: Database) -> ReadModel:
    return ReadModel(database)


@pytest.fixture
def other_model(other_database: Database) -> ReadModel:
    return ReadModel(other_database)


async def stored_images(database: Database) -> list[tuple[Any, ...]]:
    async with database.write() as connection:
        rows = await connection.exec_driver_sql(
            "SELECT job_id, storage_key, size_bytes, digest, position FROM images"
            ' ORDER BY job_id, "index"'
        )
        return [tuple(row) for row in rows]


async def test_an_empty_read_model_starts_before_the_first_event(model: ReadModel) -> None:
    assert await model.checkpoint() == 0
    assert await model.job(new_id()) is None
    assert await model.jobs("alice") == []


async def test_preparing_again_keeps_what_is_there(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    await model.apply(history.add(job_id, submitted()), expected=0)
    await database.prepare()
    assert await model.checkpoint() == 1
    assert await model.job(job_id) is not None


async def test_many_processes_prepare_one_new_database(database_url: str) -> None:
    databases = [Database(database_url) for _ in range(12)]
    try:
        await asyncio.gather(*(database.prepare() for database in databases))
        assert [await ReadModel(database).checkpoint() for database in databases] == [0] * 12
    finally:
        for database in databases:
            await database.close()


async def test_apply_folds_and_moves_the_checkpoint_together(
    model: ReadModel, history: History
) -> None:
    first, second = new_id(), new_id()
    history.add(first, submitted(), Started(attempt=1, actor="a"))
    history.add(second, submitted(owner="bob"))
    history.add(first, image(0), Completed(images=1))
    assert await model.apply(history.events, expected=0)
    assert await model.checkpoint() == 5
    for job_id in (first, second):
        own = [event for event in history.events if event.job_id == job_id]
        assert await model.job(job_id) == fold(own)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_batches_of_any_size_fold_alike(
    model: ReadModel, history: History, size: int
) -> None:
    job_id, other = new_id(), new_id()
    history.add(job_id, submitted(images=2), Started(attempt=1, actor="a"), image(0))
    history.add(other, submitted())
    history.add(job_id, AttemptFailed(attempt=1, message="Out of memory."))
    history.add(job_id, Started(attempt=2, actor="b"), image(0, attempt=2), image(1, attempt=2))
    history.add(job_id, CancelRequested(), Cancelled())
    for start in range(0, history.end, size):
        assert await model.apply(history.events[start : start + size], expected=start)
    assert await model.job(job_id) == fold(e for e in history.events if e.job_id == job_id)


async def test_the_first_image_of_an_index_has_the_row(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(images=2), Started(attempt=1, actor="a"), image(0))
    await model.apply(history.events, expected=0)
    later = history.add(job_id, image(0, attempt=2), image(1), Completed(images=2), image(2))
    await model.apply(later, expected=3)
    assert await stored_images(database) == [
        (job_id, "job/1/0", 2**33, "sha256:00", 3),
        (job_id, "job/1/1", 2**33, "sha256:00", 5),
    ]


async def test_events_of_a_job_that_was_never_submitted_only_move_the_checkpoint(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    assert await model.apply(history.add(job_id, Cancelled(), image(0)), expected=0)
    assert await model.checkpoint() == 2
    assert await model.job(job_id) is None
    assert await stored_images(database) == []


async def test_an_empty_batch_tells_only_whether_another_is_ahead(
    model: ReadModel, history: History
) -> None:
    await model.apply(history.add(new_id(), submitted()), expected=0)
    assert await model.apply([], expected=1)
    assert not await model.apply([], expected=0)
    assert await model.checkpoint() == 1


async def test_a_batch_applied_twice_changes_nothing(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    job_id = new_id()
    batch = history.add(job_id, submitted(), Started(attempt=1, actor="a"))
    assert await model.apply(batch, expected=0)
    await model.apply(history.add(job_id, Completed(images=0)), expected=2)
    assert not await other_model.apply(batch, expected=0)
    assert await other_model.checkpoint() == 3
    assert await other_model.job(job_id) == fold(history.events)


async def test_events_that_a_row_has_seen_do_not_change_it(
    model: ReadModel, history: History
) -> None:
    """Not even where the checkpoint is behind the rows."""
    job_id = new_id()
    history.add(job_id, submitted(), Started(attempt=1, actor="a"), Completed(images=0))
    await model.apply(history.events, expected=0)
    again = [*history.events[1:], *history.add(new_id(), submitted())]
    assert await model.apply(again, expected=3)
    assert await model.job(job_id) == fold(history.events[:3])


async def test_of_two_instances_racing_from_one_checkpoint_one_wins(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    for start in range(20):
        batch = history.add(new_id(), submitted())
        outcomes = await asyncio.gather(
            model.apply(batch, expected=start),
            other_model.apply(batch, expected=start),
            model.apply(batch, expected=start),
        )
        assert sorted(outcomes) == [False, False, True]
    assert await model.checkpoint() == 20
    assert len(await model.jobs("alice")) == 20


class BrokenBatch(Sequence[Event]):
    """Fails while it is read."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        yield self._events[0]
        raise RuntimeError("power cut")


async def test_a_crash_while_the_batch_is_read_leaves_nothing(
    model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), Started(attempt=1, actor="a"))
    with pytest.raises(RuntimeError, match="power cut"):
        await model.apply(BrokenBatch(history.events), expected=0)
    assert await model.checkpoint() == 0
    assert await model.job(job_id) is None
    assert await model.apply(history.events, expected=0)


async def test_a_crash_after_rows_were_written_leaves_nothing(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    too_big = image(0).model_copy(update={"size_bytes": 2**70})
    with pytest.raises(Exception, match=r"(?i)int"):  # each driver has its own error and words
        await model.apply(history.add(job_id, submitted(), image(1), too_big), expected=0)
    assert await model.checkpoint() == 0
    assert await model.job(job_id) is None
    assert await stored_images(database) == []


async def test_a_cancelled_apply_frees_the_database(model: ReadModel, history: History) -> None:
    history.add(new_id(), submitted())
    for turns in range(40):
        task = asyncio.ensure_future(model.apply(history.events, expected=0))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    reached = await model.checkpoint()
    assert await model.apply(history.add(new_id(), submitted()), expected=reached)


@pytest.mark.parametrize("end", [None, *ENDS], ids=lambda end: type(end).__name__)
async def test_a_job_comes_back_as_it_was_folded(
    model: ReadModel, history: History, end: End | None
) -> None:
    job_id = new_id()
    request = {"prompt": "ein Kreis \u25cf\x00\u2028", "seed": 2**64 - 1, "mask": None, "cfg": 7.5}
    asked = submitted(
        request=request, images=2, callback_url="https://example.com/", deadline_s=0.5
    )
    history.add(job_id, asked, Started(attempt=1, actor="a"), image(1), image(0))
    history.add(job_id, AttemptFailed(attempt=1, message="Lost."), CancelRequested())
    if end is not None:
        history.add(job_id, end, at=MORNING + timedelta(minutes=1))
    history.events[0] = replace(history.events[0], traceparent="00-0af7651916cd43dd-b7ad6b71-01")
    await model.apply(history.events, expected=0)
    job = await model.job(job_id)
    assert job == fold(history.events)
    assert job is not None
    assert type(job.end) is type(end)
    assert job.submitted_at.utcoffset() == timedelta(0)


async def test_open_jobs_are_those_of_every_owner_that_have_not_ended(
    model: ReadModel, history: History
) -> None:
    first, second, ended = new_id(), new_id(), new_id()
    history.add(second, submitted(owner="bob"), at=MORNING + timedelta(minutes=1))
    history.add(first, submitted(), Started(attempt=1, actor="a"))
    history.add(ended, submitted(), Cancelled())
    await model.apply(history.events, expected=0)
    assert await model.open_job_ids() == [first, second]


async def test_listing_is_newest_first(model: ReadModel, history: History) -> None:
    ids = [new_id() for _ in range(4)]
    for minute, place in enumerate([2, 0, 3, 1]):
        history.add(ids[place], submitted(), at=MORNING + timedelta(minutes=minute))
    await model.apply(history.events, expected=0)
    assert [job.id for job in await model.jobs("alice")] == [ids[1], ids[3], ids[0], ids[2]]


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


async def test_a_listing_follows_a_job_that_ends(model: ReadModel, history: History) -> None:
    job_id = new_id()
    await model.apply(history.add(job_id, submitted()), expected=0)
    await model.apply(history.add(job_id, Completed(images=0)), expected=1)
    assert await model.jobs("alice", status=Status.RUNNING) == []
    [job] = await model.jobs("alice", status=Status.COMPLETED)
    assert job.ended_at == MORNING


async def test_pages_have_no_gap_and_no_repeat(model: ReadModel, history: History) -> None:
    """Also where many jobs were submitted at one instant, and new ones come in between."""
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


async def test_pages_keep_to_the_filter(model: ReadModel, history: History) -> None:
    ids = [new_id() for _ in range(6)]
    for job_id in ids:
        history.add(job_id, submitted(), *([Completed(images=0)] if job_id in ids[::2] else []))
    await model.apply(history.events, expected=0)
    first = await model.jobs("alice", status=Status.COMPLETED, limit=2)
    rest = await model.jobs("alice", status=Status.COMPLETED, limit=2, before=first[-1].id)
    assert sorted(job.id for job in [*first, *rest]) == sorted(ids[::2])


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


def api_key(name: str, **changes: Any) -> ApiKey:
    values: dict[str, Any] = {
        "id": name,
        "owner": "alice",
        "name": f"{name}'s laptop",
        "secret_sha256": "ab" * 32,
        "scopes": frozenset({Scope.READ, Scope.GENERATE}),
        "created_at": MORNING,
    }
    return ApiKey(**(values | changes))


async def test_keys_come_back_as_they_were_added(database: Database) -> None:
    keys = ApiKeys(database)
    tokyo = timezone(timedelta(hours=9))
    first = api_key("first", expires_at=(MORNING + timedelta(days=1)).astimezone(tokyo))
    second = api_key("second", scopes=frozenset(), created_at=MORNING + timedelta(seconds=1))
    await keys.add(second)
    await keys.add(first)
    assert await keys.get("first") == first
    assert await keys.get("third") is None
    assert await keys.all() == [first, second]
    stored = await keys.get("first")
    assert stored is not None
    assert stored.expires_at is not None
    assert stored.expires_at.utcoffset() == timedelta(0)


async def test_a_key_is_revoked_once(database: Database) -> None:
    keys = ApiKeys(database)
    await keys.add(api_key("lost"))
    await keys.add(api_key("kept"))
    assert await keys.revoke("lost", MORNING)
    assert not await keys.revoke("lost", MORNING + timedelta(days=1))
    assert not await keys.revoke("unknown", MORNING)
    lost, kept = await keys.get("lost"), await keys.get("kept")
    assert lost is not None
    assert lost.revoked_at == MORNING
    assert kept is not None
    assert kept.revoked_at is None


async def test_a_time_without_a_zone_is_refused(database: Database) -> None:
    keys = ApiKeys(database)
    with pytest.raises(Exception, match="without a zone"):
        await keys.add(api_key("naive", created_at=MORNING.replace(tzinfo=None)))
    assert await keys.all() == []


async def test_an_endpoint_is_replaced_by_its_id(database: Database) -> None:
    endpoints = Endpoints(database)
    default = Endpoint(id="default")
    fast = Endpoint(id="fast", checkpoint="sdxl.safetensors", gpus=0.5, cpus=2, max_pixels=2**40)
    await endpoints.put(fast)
    await endpoints.put(default)
    assert await endpoints.all() == [default, fast]
    await endpoints.put(replace(fast, checkpoint=None, max_workers=8))
    assert await endpoints.get("fast") == replace(fast, checkpoint=None, max_workers=8)
    assert await endpoints.get("default") == default
    assert await endpoints.get("slow") is None


async def test_an_endpoint_that_is_there_is_not_added_again(
    database: Database, other_database: Database
) -> None:
    endpoints, others = Endpoints(database), Endpoints(other_database)
    chosen = Endpoint(id="default", max_workers=4)
    await asyncio.gather(
        *(side.add_missing(chosen) for side in [endpoints, others, endpoints, others])
    )
    await others.add_missing(Endpoint(id="default", max_workers=1))
    assert await endpoints.all() == [chosen]


async def test_a_lease_is_one_holders(database: Database, other_database: Database) -> None:
    leases, others = Leases(database), Leases(other_database)
    assert await leases.acquire("dispatcher/default", "a", ttl_s=60)
    assert not await others.acquire("dispatcher/default", "b", ttl_s=60)
    assert await others.acquire("dispatcher/fast", "b", ttl_s=60)
    assert await leases.acquire("dispatcher/default", "a", ttl_s=60)


async def test_of_many_who_want_a_lease_one_gets_it(
    database: Database, other_database: Database
) -> None:
    leases, others = Leases(database), Leases(other_database)
    outcomes = await asyncio.gather(
        *(side.acquire("x", f"{n}", ttl_s=60) for n, side in enumerate([leases, others] * 4))
    )
    assert outcomes.count(True) == 1


async def test_a_lease_that_ran_out_is_taken_over(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("x", "a", ttl_s=0.2)
    async with asyncio.timeout(10):
        while not await leases.acquire("x", "b", ttl_s=60):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.02)
    assert not await leases.acquire("x", "a", ttl_s=60)


async def test_a_renewed_lease_lasts_from_the_renewal(database: Database) -> None:
    leases = Leases(database)
    assert await leases.acquire("x", "a", ttl_s=0)
    assert await leases.acquire("x", "a", ttl_s=60)
    assert not await leases.acquire("x", "b", ttl_s=60)


async def test_a_lease_is_released_by_its_holder_alone(database: Database) -> None:
    leases = Leases(database)
    await leases.acquire("x", "a", ttl_s=60)
    await leases.release("x", "b")
    assert not await leases.acquire("x", "b", ttl_s=60)
    await leases.release("x", "a")
    assert await leases.acquire("x", "b", ttl_s=60)


async def test_a_database_that_is_away_is_unavailable(tmp_path: Path) -> None:
    for url in (
        f"sqlite+aiosqlite:///{tmp_path}/missing/darkroom.sqlite3",
        f"postgresql+asyncpg://postgres@/darkroom?host={tmp_path}",
        "postgresql+asyncpg://postgres@127.0.0.1:1/darkroom",
    ):
        database = Database(url)
        with pytest.raises(DatabaseUnavailable):
            await database.prepare()
        with pytest.raises(DatabaseUnavailable):
            await ReadModel(database).checkpoint()
        await database.close()


async def test_a_database_without_tables_is_unavailable(database_url: str) -> None:
    database = Database(database_url)
    with pytest.raises(DatabaseUnavailable):
        await ReadModel(database).checkpoint()
    await database.close()


async def test_a_database_that_comes_late_is_prepared(tmp_path: Path) -> None:
    folder = tmp_path / "late"
    database = Database(f"sqlite+aiosqlite:///{folder}/darkroom.sqlite3")
    preparing = asyncio.create_task(database.prepare_persistently())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(preparing), 0.1)
    folder.mkdir()
    await asyncio.wait_for(preparing, 10)
    assert await ReadModel(database).checkpoint() == 0
    await database.close()


async def test_a_writer_that_waits_too_long_gives_up(
    database: Database, database_url: str, history: History
) -> None:
    impatient = Database(database_url, busy_timeout_s=0.2)
    batch = history.add(new_id(), submitted())
    async with database.write() as connection:
        await connection.exec_driver_sql("UPDATE checkpoints SET seq = seq")
        with pytest.raises(DatabaseUnavailable):
            await ReadModel(impatient).apply(batch, expected=0)
    assert await ReadModel(impatient).apply(batch, expected=0)
    await impatient.close()


async def test_writers_wait_for_each_other(
    database: Database, other_database: Database, history: History
) -> None:
    models = [ReadModel(database), ReadModel(other_database)]
    leases = [Leases(database), Leases(other_database)]
    batch = history.add(new_id(), submitted())
    await asyncio.gather(
        *(model.apply(batch, expected=0) for model in models for _ in range(5)),
        *(lease.acquire(f"{n}", "a", ttl_s=1) for lease in leases for n in range(10)),
    )
    assert await models[0].checkpoint() == 1


ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=MORNING)
CONTENT = ("red circle", "job/1/0")
"""Of a request and of an image's key: what an erased job's rows must not hold."""


def a_whole_job(history: History, job_id: str) -> list[Event]:
    started = Started(attempt=1, actor="a")
    return history.add(job_id, submitted(), started, image(0), Completed(images=1))


async def shows_content(database: Database) -> bool:
    async with database.write() as connection:
        jobs = await connection.exec_driver_sql("SELECT state FROM jobs")
        state = "".join(jobs.scalars())
    return bool(await stored_images(database)) or any(text in state for text in CONTENT)


async def test_an_erased_job_leaves_no_content(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id, kept = new_id(), new_id()
    await model.apply(a_whole_job(history, job_id), expected=0)
    assert await shows_content(database)
    await model.apply(history.add(job_id, ERASED), expected=4)
    assert not await shows_content(database)
    await model.apply(history.add(kept, submitted()), expected=5)
    assert [job.id for job in await model.jobs("alice")] == [kept]
    assert await model.open_job_ids() == [kept]
    job = await model.job(job_id)
    assert job is not None
    assert job == fold(history.events[4:5])


async def test_a_projection_that_lags_does_not_bring_an_erased_job_back(
    database: Database, model: ReadModel, history: History
) -> None:
    before = a_whole_job(history, job_id := new_id())
    [erased] = history.add(job_id, ERASED)
    job = fold([erased])
    assert job is not None
    await model.erase(job)
    assert await model.apply(before, expected=0)
    assert not await shows_content(database)
    assert await model.job(job_id) == job
    assert await model.apply([erased], expected=4)
    assert await model.job(job_id) == job


async def test_one_batch_with_a_job_and_its_erasure_leaves_no_content(
    database: Database, model: ReadModel, history: History
) -> None:
    events = [*a_whole_job(history, job_id := new_id()), *history.add(job_id, ERASED)]
    await model.apply(events, expected=0)
    assert not await shows_content(database)


async def test_an_erasure_is_due_until_it_is_settled(model: ReadModel, history: History) -> None:
    job_id, later = new_id(), MORNING + timedelta(hours=1)
    await model.apply([*a_whole_job(history, job_id), *history.add(job_id, ERASED)], expected=0)
    assert await model.due_erasures(MORNING, limit=9) == [(job_id, MORNING)]
    await model.settle_erasure(job_id, again_at=later)
    assert await model.due_erasures(MORNING, limit=9) == []
    assert await model.due_erasures(later, limit=9) == [(job_id, MORNING)]
    await model.settle_erasure(job_id, again_at=None)
    assert await model.due_erasures(later, limit=9) == []


async def test_jobs_that_ended_before_a_time_are_found(model: ReadModel, history: History) -> None:
    day = timedelta(days=1)
    late, early, running, erased = (new_id() for _ in range(4))
    history.add(late, submitted(), at=MORNING + 3 * day)
    history.add(late, Cancelled(), at=MORNING + 4 * day)
    history.add(early, submitted(), at=MORNING + day)
    history.add(early, Cancelled(), at=MORNING + 2 * day)
    history.add(running, submitted())
    history.add(erased, submitted(), Cancelled(), ERASED, at=MORNING + day)
    await model.apply(history.events, expected=0)
    assert await model.ended_before(MORNING + 2 * day, limit=9) == [erased]
    assert await model.ended_before(MORNING + 5 * day, limit=9) == [erased, early, late]
    assert await model.ended_before(MORNING + 5 * day, limit=1) == [erased]


async def test_a_removed_job_has_no_rows(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id, kept = new_id(), new_id()
    await model.apply([*a_whole_job(history, job_id), *a_whole_job(history, kept)], expected=0)
    assert await model.known_images(["job/1/0", "job/9/9"]) == {"job/1/0"}
    await model.remove(job_id)
    await model.remove(job_id)
    assert await model.job(job_id) is None
    assert [row[0] for row in await stored_images(database)] == [kept]
