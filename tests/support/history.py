"""Events of many jobs, as the log hands them out, for tests of what is made of them."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from events.ids import new_id
from events.store.database import Database
from events.types import (
    Event,
    EventData,
    ImageStored,
)

MORNING = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)


class History:
    """Events as the log hands them out: positions rise over all jobs, versions within each."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._versions: Counter[str] = Counter()

    def add(self, job_id: str, *events: EventData, at: datetime = MORNING) -> list[Event]:
        new: list[Event] = []
        for data in events:
            self._versions[job_id] += 1
            new.append(
                Event(
                    id=new_id(),
                    job_id=job_id,
                    version=self._versions[job_id],
                    time=at,
                    data=data,
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


async def stored_images(database: Database) -> list[tuple[Any, ...]]:
    async with database.write() as connection:
        rows = await connection.exec_driver_sql(
            "SELECT job_id, storage_key, size_bytes, digest, position FROM images"
            ' ORDER BY job_id, "index"'
        )
        return [tuple(row) for row in rows]
