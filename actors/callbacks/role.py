"""Callbacks: takes what is due from the callback queue and delivers it, at least once.

The entry on the queue says only that something is left to do; what was done is in the delivery's
own events (`deliverer.py`). An entry is acknowledged last, when its successor is stored or there is
none, so a death between any two steps loses nothing:

| dies after                          | the entry comes again and finds                           |
|-------------------------------------|-----------------------------------------------------------|
| sending                             | no new event: sends again, with the same id               |
| `CallbackAttempted`, it succeeded   | no end: sends again, with the same id                     |
| `CallbackAttempted` with `retry_at` | it is early: parks it, or late: tries                     |
| `CallbackDelivered` or `…Exhausted` | the end: acknowledges                                     |
| parking                             | it is early: parks it again, which replaces the first     |
| what was told before the end        | what is next                                              |

(parking before `CallbackAttempted` would lose the count of tries, acknowledging before parking the
delivery itself). Two instances that send the same callback both append under the position they
folded: one meets a conflict, folds the new events, and records its own try after them, or stops if
they end the delivery. While the log is not available, an answer that was received waits to be
recorded.

While a receiver keeps failing, its breaker withholds its callbacks (`breaker.py`). That is no try
and uses none up, so it has a limit of its own: `CallbackWithheld` records when it began, and a
delivery that is still withheld `DARKROOM_CALLBACK_WITHHELD_S` later is given up.

What the machine does is no try either: an error that says nothing about the job, or may pass, sends
the entry back, and a try during which this process stood still is made again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from actors.callbacks.arrival import Arrival
from actors.callbacks.deliverer import Deliverer
from events.errors import JobDamaged, JobOfLaterVersion, LogUnavailable, ServiceError
from events.log import utc_now
from events.queue import AT_ONCE, CallbackEntry, CallbackQueue
from events.retry import keep_trying
from events.wire.callback_keys import ALONE
from settings.callbacks import CallbackSettings
from storage.images import ImageStoreError

logger = logging.getLogger(__name__)

_PULL_TIMEOUT_S = 10.0
_LATER_VERSION_S = 60.0
"""How long a delivery waits that a later version can read."""


class Callbacks:
    def __init__(
        self,
        queue: CallbackQueue,
        deliverer: Deliverer,
        *,
        settings: CallbackSettings,
        parts: Sequence[str] = ALONE,
        hold_s: float = 15.0,
    ) -> None:
        """`parts`: those of the queue that it takes; other processes have the others.

        After `hold_s` the entry of an instance that died goes to another one.
        """
        self._queue = queue
        self._deliverer = deliverer
        self._settings = settings
        self._parts = parts
        self._hold_s = hold_s
        self._held: dict[str, CallbackEntry] = {}
        """By job."""
        self._second: dict[str, CallbackEntry] = {}
        """A second entry of a job that is being handled: its turn is after that."""
        self._room = asyncio.Event()
        self._errors: Counter[str] = Counter()
        """By job: how often an error that nobody foresaw kept its delivery from being made."""

    @property
    def open_breakers(self) -> int:
        return self._deliverer.hosts.open_breakers

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._renew())
            tasks.create_task(self._deliverer.lines.run(self._parts))
            for part in self._parts:
                tasks.create_task(self._keep_pulling(tasks, part))

    async def _keep_pulling(self, tasks: asyncio.TaskGroup, part: str) -> None:
        await keep_trying(lambda: self._pull(tasks, part), on=LogUnavailable)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._hold_s / 3)
            for entry in list(self._held.values()):
                await entry.renew()

    async def _pull(self, tasks: asyncio.TaskGroup, part: str) -> None:
        """One of several parts takes its share of the room each time, and so all in the end."""
        readers = len(self._parts)
        # Entries that wait for their receiver's turn count as held, in this instance and others.
        most_held = 4 * self._settings.in_flight
        due = self._queue.due(most_held=most_held, hold_s=self._hold_s, part=part)
        async with due as entries:
            while True:
                most = -(-await self._wait_for_room() // readers)
                for entry in await entries.next(most=most, timeout_s=_PULL_TIMEOUT_S):
                    await self._wait_for_room()  # another part may have taken it
                    if entry.job_id in self._held:
                        self._second[entry.job_id] = entry
                    else:
                        self._held[entry.job_id] = entry
                        tasks.create_task(self._handle_all(entry))

    async def _wait_for_room(self) -> int:
        """How much there is then."""
        while (room := self._settings.in_flight - len(self._held)) <= 0:
            self._room.clear()
            await self._room.wait()
        return room

    async def _handle_all(self, first: CallbackEntry) -> None:
        """An entry, then what came of the same job meanwhile."""
        job_id, entry = first.job_id, first
        try:
            while True:
                self._held[job_id] = entry
                await self._handle(entry)
                if (second := self._second.pop(job_id, None)) is None:
                    break
                entry = second
        finally:
            del self._held[job_id]
            self._room.set()

    async def _handle(self, entry: CallbackEntry) -> None:
        """An entry that is not acknowledged comes again after `hold_s`."""
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            await self._deliver(entry)
            del self._errors[entry.job_id]
        except Exception as error:
            if _is_outage(error):
                logger.warning("callback goes back", extra={**fields, "error": str(error)})
            elif self._may_pass(entry, error):
                logger.exception("callback goes back", extra=fields)
            else:
                logger.exception("callback given up", extra=fields)
                await self._drop(entry, error)

    def _may_pass(self, entry: CallbackEntry, error: Exception) -> bool:
        """Whether it may be the machine's error, not one that comes of the job each time."""
        self._errors[entry.job_id] += 1
        is_last = self._errors[entry.job_id] >= self._settings.max_errors
        return not is_last and not isinstance(error, JobDamaged)

    async def _drop(self, entry: CallbackEntry, error: Exception) -> None:
        """End what cannot be told, as far as its events can be read.

        An entry that came again for ever would have the same error each time.
        """
        message = (
            f"The service could not make this callback ({type(error).__name__}). Read the job's "
            "result; if it was asked for again and failed alike, tell the operator its id."
        )
        fields = {"action": "callback", "job_id": entry.job_id}
        try:
            if await self._deliverer.give_up(entry.job_id, message):
                await self._queue.park(entry.key, AT_ONCE)
        except Exception as unended:  # noqa: BLE001 - whatever its events hold
            fields["error"] = type(unended).__name__
            logger.warning("callback could not be ended", extra=fields)
            if _is_outage(unended):
                return  # it comes again
        del self._errors[entry.job_id]
        await entry.ack()

    async def _deliver(self, entry: CallbackEntry) -> None:
        """Raises LogUnavailable, LogFull if the entry could not be parked."""
        arrival = Arrival.of(entry)
        try:
            until = await self._deliverer.come_to_end(arrival)
        except JobOfLaterVersion:  # whose role may meet it the next time
            until = utc_now() + timedelta(seconds=_LATER_VERSION_S)
        if until is not None:
            await self._queue.park(entry.key, until + arrival.ahead)
        await entry.ack()


def _is_outage(error: Exception) -> bool:
    """Whether it says nothing about the job, and passes with what is out of reach."""
    is_ours = isinstance(error, ServiceError | ImageStoreError)
    return is_ours and not isinstance(error, JobDamaged)
