"""What NATS says where something cannot be done."""

from __future__ import annotations

import nats.errors
import nats.js.errors

from events.errors import LogUnavailable

WRONG_LAST_SEQUENCE = {10071, 10164}
FULL = {10077, 10047, 10023}
"""Maximum bytes exceeded, insufficient storage, insufficient resources."""
NO_MESSAGE = 10037
NO_STREAM = 10059
STREAM_EXISTS_OTHERWISE = 10058
NO_CONSUMER = 10014
NOT_THERE = {NO_MESSAGE, NO_CONSUMER}
SUBJECTS_TAKEN = 10100
"""Another consumer of a work queue has one of its subjects."""

DISCONNECTED = (
    nats.errors.ConnectionClosedError,
    nats.errors.OutboundBufferLimitError,
    nats.errors.StaleConnectionError,
    nats.errors.ConnectionReconnectingError,
    nats.errors.NoServersError,
    nats.errors.NoRespondersError,
    nats.js.errors.ServiceUnavailableError,
    nats.js.errors.NoStreamResponseError,
    OSError,
)
"""Every way in which nats-py says that there is no connection, or that nobody answers on it."""


class WrongLastSequence(Exception):
    """The subject's last message is not the one that was expected."""


class NoAnswer(Exception):
    """The server did not answer in time: what was sent may have been stored."""


def code_of(error: Exception) -> int | None:
    """The error code of JetStream's API; None where the error is another one."""
    return error.err_code if isinstance(error, nats.js.errors.APIError) else None


def was_said(error: LogUnavailable, code: int) -> bool:
    """Whether it is raised from this error of JetStream's API."""
    return isinstance(error.__cause__, Exception) and code_of(error.__cause__) == code
