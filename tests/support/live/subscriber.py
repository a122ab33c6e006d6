"""Runs an example of a subscriber as a program: it is started, killed, and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.decisions import Complete, Erase, Start, StoreImage, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from local.nats_server import NatsServer
from tests.support.events import image, job_in, submitted
from tests.support.polling import eventually

PROMPT = "a secret circle"
WHOLE = ["submitted", "started", "image_stored", "completed"]


@dataclass(frozen=True)
class Subscriber:
    """A subscriber. `command` gets the files with the address of the log and the offset."""

    command: Sequence[str | Path]
    server: NatsServer
    folder: Path

    @contextmanager
    def runs(self) -> Iterator[None]:
        """Run the subscriber and kill it at the end, without a chance to clean up."""
        with (
            self._output.open("ab") as output,
            subprocess.Popen(self._words, stdout=output, start_new_session=True) as process,
        ):
            try:
                yield
            finally:
                # Kill its children too: `node` of a wheel is a program that starts the real one.
                os.killpg(process.pid, signal.SIGKILL)

    @property
    def _words(self) -> list[str | Path]:
        address = self.folder / "reader.url"
        address.write_text(self.server.reader_url + "\n")
        return [*self.command, address, self.folder / "offset"]

    @property
    def _output(self) -> Path:
        return self.folder / "output"

    def shown(self) -> list[dict[str, Any]]:
        if not self._output.exists():
            return []
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def has_shown(self, job_id: str) -> list[str]:
        """The last words of the types of a job's events."""
        events = [event for event in self.shown() if event["subject"] == job_id]
        return [event["type"].split(".")[2] for event in events]


class Jobs:
    """Real events of real jobs, stored by the service's own writer."""

    def __init__(self, bus: Bus) -> None:
        self._log = JetStreamLog(bus)
        self._writer = JobWriter(self._log)

    async def run(self) -> str:
        """Run a whole job and return its id."""
        job_id = new_id()
        await self._writer.submit(job_id, Submit(submitted(request={"prompt": PROMPT})))
        start = Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())
        for command in (start, StoreImage("a", image(0)), Complete("a", images=1)):
            await self._writer.execute(command, await self._job(job_id))
        return job_id

    async def erase(self, job_id: str) -> None:
        await self._writer.execute(Erase(), await self._job(job_id))
        await self._log.purge(job_id, keep=1)

    async def _job(self, job_id: str) -> Job:
        return await job_in(self._log, job_id)


async def follows_replays_and_resumes(subscriber: Subscriber, jobs: Jobs) -> None:
    """Check what is promised of each example."""
    erased, before = await jobs.run(), await jobs.run()
    await jobs.erase(erased)
    with subscriber.runs():
        await eventually(lambda: subscriber.has_shown(before) == WHOLE)
        live = await jobs.run()
        await eventually(lambda: subscriber.has_shown(live) == WHOLE)

    missed = await jobs.run()
    with subscriber.runs():
        await eventually(lambda: subscriber.has_shown(missed) == WHOLE)
        subscriber.server.stop()
        subscriber.server.start()
        later = await jobs.run()
        await eventually(lambda: subscriber.has_shown(later) == WHOLE)

    assert subscriber.has_shown(erased) == ["erased"]
    texts = [json.dumps(event) for event in subscriber.shown() if event["subject"] == erased]
    assert not any(PROMPT in text for text in texts)
    # If it was killed between an event and its offset it may show that event again, and no other.
    ids = [event["id"] for event in subscriber.shown()]
    assert len(ids) - len(set(ids)) <= 1
