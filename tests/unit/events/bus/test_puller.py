from __future__ import annotations

from datetime import UTC, datetime

import pytest

from events.bus.puller import stored_at


@pytest.mark.parametrize(
    "ack_subject",
    [
        "$JS.ACK.QUEUE.default-3.1.17.4.1763800000123456789.0",
        "$JS.ACK._.hash.QUEUE.default-3.1.17.4.1763800000123456789.0",
        "$JS.ACK.hub.hash.QUEUE.default-3.1.17.4.1763800000123456789.0.random",
    ],
)
def test_an_ack_subject_says_when_its_message_was_stored(ack_subject: str) -> None:
    assert stored_at(ack_subject) == datetime(2025, 11, 22, 8, 26, 40, 123456, tzinfo=UTC)
