"""Error codes and exceptions of NATS."""

from __future__ import annotations

import nats.errors
import nats.js.errors

WRONG_LAST_SEQUENCE = {10071, 10164}
FULL = {10077, 10047, 10023}
"""Error codes for: maximum bytes exceeded, insufficient storage, insufficient resources."""
NO_MESSAGE = 10037
NO_STREAM = 10059
STREAM_EXISTS_OTHERWISE = 10058
NO_CONSUMER = 10014
STREAM_FAILED = 10051
"""Error code for an error of the stream's store."""
NOT_THERE = {NO_MESSAGE, NO_CONSUMER}

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
"""The errors by which nats-py reports that there is no connection or that no server answers."""


class WrongLastSequence(Exception):
    """The last message of the subject does not have the expected sequence."""


class NoAnswer(Exception):
    """The server did not answer in time. The message may have been stored."""


def code_of(error: Exception) -> int | None:
    """Return the error code of JetStream's API, or None for another error."""
    return error.err_code if isinstance(error, nats.js.errors.APIError) else None
