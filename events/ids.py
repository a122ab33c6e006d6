"""Identifiers: time-ordered job and event ids, ids derived from an idempotency key, partitions.

UUIDv7 and UUIDv8: RFC 9562.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid

import uuid_utils

PARTITIONS = 16
LANES = 64
READERS = 8
"""Of the lanes of an endpoint: reader `i` reads those with `lane % READERS == i`."""
ID_LENGTH = 36
"""Characters of an id as text."""
ENDPOINT_ID = r"^[A-Za-z0-9_-]{1,64}$"
"""Pattern of an endpoint's id: it may stand in a subject of the bus."""


def new_id() -> str:
    """A UUIDv7: sorts by the time it was made."""
    return str(uuid_utils.uuid7())


def derived_id(secret: bytes, owner: str, idempotency_key: str) -> str:
    """A UUIDv8 that the same owner and key always give, and nobody without the secret can guess."""
    message = f"{owner}\0{idempotency_key}".encode()
    digest = bytearray(hmac.new(secret, message, hashlib.sha256).digest()[:16])
    digest[6] = (digest[6] & 0x0F) | 0x80
    digest[8] = (digest[8] & 0x3F) | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def is_job_id(text: str) -> bool:
    """True only for the canonical spelling of a UUID: safe in subjects, paths and keys."""
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def partition_of(job_id: str) -> int:
    """0..15, only from the id, so that one stream can be split without new subjects."""
    return hashlib.blake2b(job_id.encode(), digest_size=1).digest()[0] % PARTITIONS


def lane_of(owner: str) -> int:
    """0..63, from the owner, so that one caller's backlog keeps to one lane."""
    return hashlib.blake2b(owner.encode(), digest_size=1).digest()[0] % LANES
