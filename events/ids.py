"""Ids of jobs and events, ids that are derived from idempotency keys, partitions and lanes.

UUIDv7 and UUIDv8: RFC 9562.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

import uuid_utils

PARTITIONS = 16
LANES = 64
CONSUMERS = 8
"""The number of consumers of an endpoint's queue. Consumer `i` gets the lanes with
`lane % CONSUMERS == i`."""
ID_LENGTH = 36
"""The number of characters of an id as text."""
ENDPOINT_ID = r"^[A-Za-z0-9_-]{1,64}$"
"""The pattern of an endpoint's id. Its characters are all allowed in a NATS subject."""
NEW_ENDPOINT_ID = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,63}$"
"""The pattern of a new endpoint's id. A command would take an id that begins with `-` for an
option.
"""


def new_id() -> str:
    """Return a new UUIDv7. Such ids sort by their time of creation."""
    return str(uuid_utils.uuid7())


def derived_id(secret: bytes, owner: str, idempotency_key: str) -> str:
    """Derive a UUIDv8 from owner and key. It cannot be guessed without the secret."""
    message = f"{owner}\0{idempotency_key}".encode()
    digest = bytearray(hmac.new(secret, message, hashlib.sha256).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def is_job_id(text: str) -> bool:
    """Return whether the text is a canonical UUID, and so safe in subjects and paths."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def partition_of(job_id: str) -> int:
    """Return the partition 0..15 of a job. Subjects have it, so that streams can be split later."""
    return hashlib.blake2b(job_id.encode(), digest_size=1).digest()[0] % PARTITIONS


def lane_of(owner: str) -> int:
    """Return the lane 0..63 of all entries of an owner."""
    return hashlib.blake2b(owner.encode(), digest_size=1).digest()[0] % LANES
