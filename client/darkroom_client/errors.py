"""What goes wrong.

DarkroomError
├── Refused            the service answered an error
├── AnswerInvalid      what answered is not the service
├── Unreachable        it did not answer, however often it was asked
├── NotEnded           the job has not ended in the time that was given
├── JobFailed          the job ended without its images
└── SignatureInvalid   a callback is not the service's, or is old
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from darkroom_client.values import Result


class DarkroomError(Exception):
    """Something went wrong."""


class Refused(DarkroomError):
    """The service answered an error. `type` is for programs."""

    def __init__(self, status: int, body: Any) -> None:
        error = body.get("error") if isinstance(body, dict) else None
        error = error if isinstance(error, dict) else {}
        self.status = status
        self.type = str(error.get("type", "unknown"))
        self.message = str(error.get("message", f"The service answered {status}."))
        self.details = str(error.get("details", ""))
        self.node_errors: dict[str, Any] = (
            isinstance(body, dict) and body.get("node_errors")
        ) or {}
        super().__init__(" ".join(part for part in (self.message, self.details) if part))


class AnswerInvalid(DarkroomError):
    """The answer is none of the service's: its address may be that of something else."""

    def __init__(self, status: int) -> None:
        super().__init__(
            f"The answer ({status}) is none of Darkroom's. Look at the address of the service, and "
            "at what stands before it."
        )
        self.status = status


class Unreachable(DarkroomError):
    """The service did not answer, however often it was asked."""


class NotEnded(DarkroomError):
    """The job has not ended in time. It goes on: wait again, watch or cancel it."""


class JobFailed(DarkroomError):
    """The job ended without its images."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.message or "The job failed.")
        self.result = result
        self.code = result.error_code
        self.is_retryable = result.is_retryable


class SignatureInvalid(DarkroomError):
    """This callback was not signed with this secret, or not lately."""
