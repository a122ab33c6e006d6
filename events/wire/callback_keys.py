"""Keys of deliveries on the callback queue, which is in parts, by receiver. Pure.

How a receiver does (its turns, its breaker, its line) is known in the memory of one process. So
several processes divide the queue by receivers: each has whole parts of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from events.callback_address import receiver_of
from events.ids import PARTITIONS
from events.types import Submitted

UNDIVIDED = ""
"""The part of what versions put on the queue that knew no others: its key is the id of the job."""
DIVIDED = tuple(map(str, range(PARTITIONS)))
ALL_DIVIDED = "all"
"""In the place of one part: all but the first."""
PARTS = (UNDIVIDED, *DIVIDED)


def callback_key(job_id: str, submitted: Submitted) -> str:
    """The same whoever asks, and for all of the time of a job."""
    return key_by(job_id, callback_url=submitted.callback_url, owner=submitted.owner)


def key_by(job_id: str, *, callback_url: str | None, owner: str) -> str:
    """Where there are only images to be put, by their owner: turns at a bucket are an owner's."""
    receiver = f"of {owner}" if callback_url is None else receiver_of(callback_url)
    digest = hashlib.blake2b(receiver.encode(), digest_size=1).digest()[0]
    return f"{digest % PARTITIONS}.{job_id}"


def part_of(key: str) -> str:
    return key.rpartition(".")[0]


def job_id_of(key: str) -> str:
    return key.rpartition(".")[2]


def parts_of(number: int, processes: int) -> Sequence[str]:
    """What the process `number`, from 1, of so many has. All together have each part once."""
    return (UNDIVIDED, ALL_DIVIDED) if processes == 1 else PARTS[number - 1 :: processes]


ALONE = parts_of(1, 1)


def single_parts(parts: Sequence[str]) -> Sequence[str]:
    return [each for part in parts for each in (DIVIDED if part == ALL_DIVIDED else (part,))]
