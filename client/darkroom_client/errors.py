"""The errors of the client.

DarkroomError
├── Refused            the service answered with an error
├── AnswerInvalid      the answer does not come from Darkroom
├── Unreachable        the service did not answer
├── NotEnded           the job has not ended within the given time
├── JobFailed          the job failed or was cancelled; defined in `values`
└── SignatureInvalid   a callback has a wrong or an old signature
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class DarkroomError(Exception):
    """The base class of all errors of the client."""


class Refused(DarkroomError):
    """The service answered with an error.

    `type` is a name for programs, and `body` is the whole answer.
    """

    def __init__(self, status: int, body: Any) -> None:
        self.body: Mapping[str, Any] = body if isinstance(body, dict) else {}
        error = self.body.get("error")
        error = error if isinstance(error, dict) else {}
        self.status = status
        self.type = str(error.get("type", "unknown"))
        self.message = str(error.get("message", f"The service answered {status}."))
        self.details = str(error.get("details", ""))
        self.node_errors: dict[str, Any] = self.body.get("node_errors") or {}
        super().__init__(" ".join(part for part in (self.message, self.details) if part))


class AnswerInvalid(DarkroomError):
    """The answer does not come from Darkroom. Another program may use this address."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"The answer ({status}) did not come from Darkroom. Check the address of the service, "
            "and any proxy in front of it."
        )
        self.status = status


class Unreachable(DarkroomError):
    """The service did not answer. Every method except `call` has also repeated the request."""


class NotEnded(DarkroomError):
    """The job has not ended within the given time. The job continues."""


class SignatureInvalid(DarkroomError):
    """The callback was not signed with this secret, or it was signed too long ago."""
