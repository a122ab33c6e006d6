"""Reads all data that the service stores about jobs, and finds disagreements between two stores.

While jobs run, some stores lag behind others. Therefore each disagreement is checked a second time
after a pause, and reported only if the second check also finds it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import get_args

from events.cloud_events import decode_stored
from events.delivery import fold_delivery, has_delivery
from events.errors import HistoryBroken
from events.history import StoredHistory, read_history
from events.ids import is_job_id
from events.job import Job, fold
from events.log import StoredEvent, utc_now
from events.store.database_contents import JobRow
from events.store.removal import SWEEP_GRACE_S
from events.types import Broken, End, Erased, Event, Submitted, Unknown
from operations.stores import Stores, gather_lists, stored_in_logs, stored_of
from storage.file_names import UPLOADS, history_name
from storage.images import ImageNotFound

_BATCH = 64
"""The number of jobs or files that are checked at the same time. Each check uses a connection."""
_ENTRY_OUTLIVES_JOB = timedelta(seconds=60)
"""The time for which the queue entry of an ended job is not reported. An entry is acknowledged
after the end of its job is stored, at the latest when NATS delivers the entry again.
"""


class Kind(StrEnum):
    """The kinds of disagreements, as `darkroom verify` names them."""

    UNREADABLE_EVENT = "unreadable_event"
    NO_SUBMISSION = "no_submission"
    VERSION_GAP = "version_gap"
    MORE_THAN_ONE_END = "more_than_one_end"
    OPEN_WITHOUT_ENTRY = "open_without_entry"
    CALLBACK_LOST = "callback_lost"
    ROW_DIFFERS = "row_differs"
    ROW_WITHOUT_EVENTS = "row_without_events"
    EVENTS_WITHOUT_ROW = "events_without_row"
    PROJECTION_AHEAD = "projection_ahead"
    PROJECTION_STOPPED = "projection_stopped"
    FILE_MISSING = "file_missing"
    FILE_DIFFERS = "file_differs"
    FILE_OF_NOTHING = "file_of_nothing"
    DELIVERY_OF_UNKNOWN_JOB = "delivery_of_unknown_job"
    ENTRY_OF_UNKNOWN_JOB = "entry_of_unknown_job"
    HISTORY_DAMAGED = "history_damaged"
    HISTORY_MISSING = "history_missing"
    ENTRY_OF_ENDED_JOB = "entry_of_ended_job"


@dataclass(frozen=True, slots=True)
class Disagreement:
    kind: Kind
    what: str
    """A sentence for operators, without content from callers."""
    job_id: str | None = None
    file: str | None = None
    """The key of the file in the image store."""

    @property
    def subject(self) -> tuple[Kind, str | None, str | None]:
        return self.kind, self.job_id, self.file


Check = Callable[[Sequence[str]], Awaitable[list[Disagreement]]]
"""Finds disagreements about the given jobs or files. Changes nothing, so it can be repeated."""


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """Disagreements that the first run of a check found."""

    check: Check
    items: Sequence[str]
    found: frozenset[tuple[Kind, str | None, str | None]]


class Verification:
    def __init__(
        self,
        stores: Stores,
        *,
        digests: bool = False,
        file_grace_s: float = SWEEP_GRACE_S,
        settle_s: float = 5.0,
        most_suspects: int = 1000,
        now: Callable[[], datetime] = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """With `digests`, every file is read, and its digest is compared as well as its size.

        Files that are younger than `file_grace_s` seconds are not checked, because their job may
        not name them yet. Disagreements are checked again at the end, or as soon as there are
        `most_suspects` of them, after a pause of `settle_s` seconds.
        """
        self._stores = stores
        self._digests = digests
        self._file_grace = timedelta(seconds=file_grace_s)
        self._settle_s = settle_s
        self._most_suspects = most_suspects
        self._now = now
        self._sleep = sleep
        self._last_offset: int | None = None
        """The offset of the read model at the last check."""

    async def run(self) -> AsyncGenerator[Disagreement]:
        """Yield all disagreements, in the order in which they are found.

        Raises LogUnavailable, ReadTimeout, DatabaseUnavailable, ImageStoreUnavailable.
        """
        suspicions: list[_Suspicion] = []
        async for check, items in self._walk():
            if found := await check(items):
                subjects = frozenset(each.subject for each in found)
                suspicions.append(_Suspicion(check, items, subjects))
            if sum(len(each.found) for each in suspicions) >= self._most_suspects:
                async for disagreement in self._confirmed(suspicions):
                    yield disagreement
                suspicions = []
        async for disagreement in self._confirmed(suspicions):
            yield disagreement

    async def _walk(self) -> AsyncGenerator[tuple[Check, Sequence[str]]]:
        stores = self._stores
        walks: tuple[tuple[Check, AsyncGenerator[list[str]]], ...] = (
            (self._projection, _once()),
            (self._jobs_in_log, stores.log.job_ids()),
            (self._rows, stores.rows.job_ids()),
            (self._deliveries, stores.deliveries.job_ids()),
            (self._queue_entries, stores.queue.job_id_pages()),
            (self._callback_entries, stores.callbacks.job_id_pages()),
            (self._uploads, stores.rows.upload_keys()),
            (self._files, self._old_files()),
        )
        for check, pages in walks:
            async for page in pages:
                for start in range(0, len(page), _BATCH):
                    yield check, page[start : start + _BATCH]

    async def _confirmed(self, suspicions: Sequence[_Suspicion]) -> AsyncGenerator[Disagreement]:
        """Repeat the checks after a pause, and yield the disagreements that both runs found."""
        if suspicions:
            await self._sleep(self._settle_s)
        for suspicion in suspicions:
            about = {each for _, job_id, file in suspicion.found for each in (job_id, file)}
            items = [each for each in suspicion.items if each in about]
            for disagreement in await suspicion.check(items):
                if disagreement.subject in suspicion.found:
                    yield disagreement

    async def _old_files(self) -> AsyncGenerator[list[str]]:
        async for files in self._stores.images.files():
            before = self._now() - self._file_grace
            yield [file.key for file in files if file.stored_at < before]

    async def _projection(self, _: Sequence[str]) -> list[Disagreement]:
        """Check the offset of the read model. The second check shows whether the offset moves."""
        offset = await self._stores.read_model.offset()
        moved = self._last_offset is not None and self._last_offset != offset
        self._last_offset = offset
        last = await self._stores.log.last_sequence()
        if offset > last:
            text = f"The read model is at offset {offset}, but the log ends at {last}."
            return [Disagreement(Kind.PROJECTION_AHEAD, text)]
        if moved or not await self._stores.log.following(offset):
            return []
        text = f"The read model stays at offset {offset}, but the log continues to {last}."
        return [Disagreement(Kind.PROJECTION_STOPPED, text)]

    # The next methods check jobs with events: their rows, queue entries, callbacks and images.

    async def _jobs_in_log(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Check jobs that have all events in the log. `_rows` checks jobs with a history object."""
        offset = await self._stores.read_model.offset()
        # The rows are read after the offset, so they have all events up to the offset.
        rows = await self._stores.rows.jobs(job_ids)
        histories = await self._stores.rows.histories(job_ids)
        stored = await stored_in_logs(
            self._stores, [each for each in job_ids if each not in histories]
        )
        return await gather_lists(
            self._job(stored[job_id], rows.get(job_id), offset=offset)
            for job_id in job_ids
            if job_id in stored and stored[job_id].events
        )

    async def _rows(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Check that each row has events, and check the jobs that have a history object."""
        offset = await self._stores.read_model.offset()
        in_log = await self._stores.log.read_raw(job_ids)
        # The keys are read after the log, because events may move from the log to an object.
        keys = await self._stores.rows.histories(job_ids)
        rows = await self._stores.rows.jobs([each for each in job_ids if each not in in_log])
        text = "The read model has a row of this job, but the job has no events."
        found = [
            Disagreement(Kind.ROW_WITHOUT_EVENTS, text, job_id)
            for job_id in rows
            if job_id not in keys
        ]
        # The rows are read after the offset, so they have all events up to the offset.
        rows = await self._stores.rows.jobs(keys)
        in_logs = await stored_in_logs(self._stores, keys)
        return found + await gather_lists(
            self._with_history(
                keys[job_id],
                in_logs.get(job_id, StoredHistory(job_id)),
                row,
                offset=offset,
            )
            for job_id, row in rows.items()
        )

    async def _with_history(
        self, key: str, in_logs: StoredHistory, row: JobRow, *, offset: int
    ) -> list[Disagreement]:
        """Check a job whose row names the history object `key`."""
        job_id = in_logs.job_id
        try:
            history = await read_history(self._stores.images, key)
        except ImageNotFound:
            text = f"The row of this job names the history {key}, which is not in the image store."
            return [Disagreement(Kind.HISTORY_MISSING, text, job_id, key)]
        except HistoryBroken as error:
            return [Disagreement(Kind.HISTORY_DAMAGED, str(error), job_id, key)]
        if history.job_id != job_id:
            text = f"The history {key} belongs to the job {history.job_id}."
            return [Disagreement(Kind.HISTORY_DAMAGED, text, job_id, key)]
        return await self._job(history.joined(in_logs), row, offset=offset)

    async def _job(
        self, stored: StoredHistory, row: JobRow | None, *, offset: int
    ) -> list[Disagreement]:
        """Check one job. `stored` was read after `row`, and `row` after `offset`."""
        history = _job_history(stored.job_id, stored.events)
        job = history.job
        if job is None:
            return list(history.disagreements)
        found = _row_disagreements(job.id, row, history.events, offset=offset)
        if job.end is None and not await self._stores.queue.has(job):
            text = "The job has not ended, but no queue has an entry of it."
            found.append(Disagreement(Kind.OPEN_WITHOUT_ENTRY, text, job.id))
        if job.end is not None and has_delivery(job.submitted):
            found += await self._callback(job, stored.deliveries)
        for file in job.files:
            found += await self._file(
                file.key, size_bytes=file.size_bytes, digest=file.digest, job_id=job.id
            )
        return found

    async def _callback(self, job: Job, deliveries: Sequence[StoredEvent]) -> list[Disagreement]:
        """Check that the delivery of an ended job has ended or is on the callback queue."""
        events, unreadable = _decoded(job.id, deliveries, log="delivery's log")
        if unreadable or fold_delivery(events).ended or await self._stores.callbacks.has(job):
            return []
        text = (
            f"The job has ended, but its callback has not ({len(events)} events), and no queue has "
            "an entry of it."
        )
        return [Disagreement(Kind.CALLBACK_LOST, text, job.id)]

    # The next methods check that deliveries and queue entries belong to a job that needs them.

    async def _deliveries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Check the delivery events of these jobs."""
        unknown = await self._unknown(job_ids)
        found = []
        for job_id, stored in (await stored_of(self._stores, job_ids)).items():
            messages = stored.deliveries
            if messages and job_id in unknown:
                text = (
                    f"The delivery of this job has {len(messages)} events, but there is no such "
                    "job."
                )
                found.append(Disagreement(Kind.DELIVERY_OF_UNKNOWN_JOB, text, job_id))
                continue
            events, unreadable = _decoded(job_id, messages, log="delivery's log")
            found += unreadable or _gap(job_id, events, log="delivery's log")
        return found

    async def _queue_entries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        """Check that each entry of the job queue belongs to a job that has not ended."""
        found = await self._unknown_entries(job_ids, queue="job queue")
        for stored in (await stored_of(self._stores, job_ids)).values():
            job = _job_history(stored.job_id, stored.events).job
            if job is None or job.ended_at is None:
                continue
            is_late = job.ended_at <= self._now() - _ENTRY_OUTLIVES_JOB
            if is_late and await self._stores.queue.has(job):
                text = (
                    f"The job ended at {job.ended_at:%Y-%m-%d %H:%M:%S} UTC, but the job queue has "
                    "an entry of it."
                )
                found.append(Disagreement(Kind.ENTRY_OF_ENDED_JOB, text, job.id))
        return found

    async def _callback_entries(self, job_ids: Sequence[str]) -> list[Disagreement]:
        return await self._unknown_entries(job_ids, queue="callback queue")

    async def _unknown_entries(self, job_ids: Sequence[str], *, queue: str) -> list[Disagreement]:
        text = f"The {queue} has an entry of this job, but there is no such job."
        unknown = await self._unknown(job_ids)
        return [Disagreement(Kind.ENTRY_OF_UNKNOWN_JOB, text, job_id) for job_id in unknown]

    async def _unknown(self, job_ids: Sequence[str]) -> list[str]:
        """Return the jobs that have neither events nor a row."""
        stored = await self._stores.log.read_raw(job_ids)
        rows = await self._stores.rows.jobs(job_ids)
        return [each for each in job_ids if each not in stored and each not in rows]

    # The next methods check that files are unchanged and that a job, an upload or a row names them.

    async def _uploads(self, keys: Sequence[str]) -> list[Disagreement]:
        """Check the files of uploads that have a row."""
        uploads = await self._stores.rows.uploads_of(keys)
        return await gather_lists(
            self._file(each.key, size_bytes=each.size_bytes, digest=each.digest)
            for each in uploads.values()
        )

    async def _file(
        self, key: str, *, size_bytes: int, digest: str, job_id: str | None = None
    ) -> list[Disagreement]:
        """Check the file that a job or an upload names."""
        images = self._stores.images
        expected: tuple[int | str, ...] = (size_bytes, digest) if self._digests else (size_bytes,)
        try:
            if self._digests:
                data = await images.get(key)
                found: tuple[int | str, ...] = (
                    len(data),
                    f"sha256:{hashlib.sha256(data).hexdigest()}",
                )
            else:
                found = (await images.size(key),)
        except ImageNotFound:
            text = f"The file {key} is not in the image store."
            return [Disagreement(Kind.FILE_MISSING, text, job_id, key)]
        if found == expected:
            return []
        text = f"The file {key} has {_shown_file(found)}, but {_shown_file(expected)} are recorded."
        return [Disagreement(Kind.FILE_DIFFERS, text, job_id, key)]

    async def _files(self, keys: Sequence[str]) -> list[Disagreement]:
        """Check that a job, an upload or a row names each stored file.

        Files whose names Darkroom never uses are ignored, as by the janitor.
        """
        uploads = [key for key in keys if key.startswith(f"{UPLOADS}/")]
        histories = [key for key in keys if history_name(key) is not None]
        images = [key for key in keys if is_job_id(_job_of(key)) and key not in histories]
        known = {*await self._stores.rows.uploads_of(uploads)}
        known |= await self._stores.read_model.image_keys({_job_of(key) for key in images})
        known |= await self._named_in_log([key for key in images if key not in known])
        found = [
            Disagreement(
                Kind.FILE_OF_NOTHING,
                f"No job and no upload names the file {key}.",
                _job_of(key) if is_job_id(_job_of(key)) else None,
                key,
            )
            for key in (*uploads, *images)
            if key not in known
        ]
        rows = await self._stores.rows.jobs({_job_of(key) for key in histories})
        for key in histories:
            row = rows.get(_job_of(key))
            if row is None:
                text = f"The history {key} is stored, but the read model has no row of its job."
                found.append(Disagreement(Kind.EVENTS_WITHOUT_ROW, text, _job_of(key), key))
            # While the events of a job are in the log, the historian may still remove its objects.
            elif row.columns["hot_since"] is None and row.columns["history"] != key:
                text = f"The row of its job does not name the history {key}."
                found.append(Disagreement(Kind.FILE_OF_NOTHING, text, _job_of(key), key))
        return found

    async def _named_in_log(self, keys: Sequence[str]) -> set[str]:
        """Return the `keys` that events name, or may name later. The read model may lag behind the
        log.
        """
        stored = await self._stores.log.read_raw({_job_of(key) for key in keys})
        histories = {job_id: _job_history(job_id, events) for job_id, events in stored.items()}
        return {
            key
            for key in keys
            if (history := histories.get(_job_of(key))) is not None and _may_name(history, key)
        }


@dataclass(frozen=True, slots=True)
class _JobHistory:
    """The events of one job, with the disagreements about them."""

    events: tuple[Event, ...]
    disagreements: tuple[Disagreement, ...]
    """If there are disagreements, the state of the job is unknown."""

    @property
    def job(self) -> Job | None:
        return None if self.disagreements else fold(self.events)


def _job_history(job_id: str, stored: Sequence[StoredEvent]) -> _JobHistory:
    events, wrong = _decoded(job_id, stored, log="log")
    if not wrong and events:
        wrong = _history_disagreements(job_id, events)
    return _JobHistory(tuple(events), tuple(wrong))


def _decoded(
    job_id: str, stored: Sequence[StoredEvent], *, log: str
) -> tuple[list[Event], list[Disagreement]]:
    """Return the events of one subject, and a disagreement for each message that cannot be read."""
    events: list[Event] = []
    wrong: list[Disagreement] = []
    for each in stored:
        event = decode_stored(each.payload, job_id=job_id, position=each.sequence)
        match event.data:
            case Broken():
                what = "not an event"
            case Unknown():
                what = "an event of a later version"
            case _ if event.job_id != job_id:
                what = f"an event of job {event.job_id}"
            case _:
                events.append(event)
                continue
        text = f"Message {each.sequence} of the {log} is {what}."
        wrong.append(Disagreement(Kind.UNREADABLE_EVENT, text, job_id))
    return events, wrong


def _history_disagreements(job_id: str, events: Sequence[Event]) -> list[Disagreement]:
    if wrong := _gap(job_id, events, log="log"):
        return wrong
    if not isinstance(events[0].data, Submitted) and not isinstance(events[-1].data, Erased):
        text = f"The first event of this job is {events[0].data.type_name}."
        return [Disagreement(Kind.NO_SUBMISSION, text, job_id)]
    ends = [event.version for event in events if isinstance(event.data, get_args(End))]
    if len(ends) > 1:
        text = f"The job ends at versions {_shown_numbers(ends)}."
        return [Disagreement(Kind.MORE_THAN_ONE_END, text, job_id)]
    return []


def _gap(job_id: str, events: Sequence[Event], *, log: str) -> list[Disagreement]:
    """Check that versions begin at 1 and have no gap. Events before an `Erased` may be missing."""
    versions = [event.version for event in events]
    is_erased = bool(events) and isinstance(events[-1].data, Erased)
    first = versions[0] if is_erased else 1
    if versions == list(range(first, first + len(versions))):
        return []
    text = f"The versions of this job in the {log} are {_shown_numbers(versions)}."
    return [Disagreement(Kind.VERSION_GAP, text, job_id)]


def _row_disagreements(
    job_id: str, row: JobRow | None, events: Sequence[Event], *, offset: int
) -> list[Disagreement]:
    """Compare the row of a job with its events. There is at least one event.

    `events` were read after `row`, and `row` after `offset`. Events that are not projected yet
    are no disagreement.
    """
    if row is None:
        if events[0].position > offset:
            return []
        text = f"The log has {len(events)} events of this job, but the read model has no row of it."
        return [Disagreement(Kind.EVENTS_WITHOUT_ROW, text, job_id)]
    last = events[-1]
    projected = [event for event in events if event.position <= offset]
    known = [event for event in events if event.version <= row.version]
    if row.version > last.version or (projected and row.version < projected[-1].version):
        text = (
            f"The row of this job is at version {row.version}, but its events end at version "
            f"{last.version}."
        )
        return [Disagreement(Kind.ROW_DIFFERS, text, job_id)]
    job = fold(known)
    if job is not None and (columns := row.differences(job, known)):
        text = f"The row of this job differs from its events in {', '.join(columns)}."
        return [Disagreement(Kind.ROW_DIFFERS, text, job_id)]
    return []


def _may_name(history: _JobHistory, key: str) -> bool:
    job = history.job
    return job is None or job.end is None or key in {file.key for file in job.files}


def _job_of(key: str) -> str:
    return key.partition("/")[0]


def _shown_file(file: Sequence[int | str]) -> str:
    return " and ".join((f"{file[0]} bytes", *map(str, file[1:])))


def _shown_numbers(numbers: Sequence[int], *, most: int = 20) -> str:
    more = ", …" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


async def _once() -> AsyncGenerator[list[str]]:
    yield [""]
