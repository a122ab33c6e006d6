"""Errors that refuse a request. `error_responses.py` has the HTTP response to each.

RequestRefused
├── KeyRefused              the API key, or its absence, is the reason
│   ├── KeyMissing              the request has no API key
│   ├── KeyInvalid              the API key is unknown, malformed, revoked or expired
│   ├── ScopeMissing            the key lacks the scope of the route
│   ├── EndpointForbidden       the key may not use this endpoint
│   └── CallbackHostForbidden   the key may not send callbacks to this host
├── CallbackUrlMissing      `callback_events` without a `callback_url`
├── QualityOfPng            a PNG has no quality
├── BodyTooLarge            the body is too large even without its inline images
├── EndpointNotFound        the endpoint is unknown, or belongs to another owner
├── EndpointExists
├── EndpointChanged         the endpoint has another revision than the caller stated
├── EndpointNotDeletable    the settings create the endpoint
├── JobNotFound             the job is unknown, or belongs to another owner
│   └── OtherFlavour            the job has the other flavour
├── JobNotResubmittable     the job has not failed
├── WorkflowNotFound        the workflow is unknown, or belongs to another owner
├── WorkflowExists
├── WorkflowChanged         the workflow has another newest version than the caller read
├── TooManyWorkflows        the owner has too many workflows, versions or bytes of them
├── CursorGone              the events after the cursor are not available
├── KeyNotFound
├── KeyNotRotatable         the key has ended, or has a successor
├── IdempotencyConflict     the idempotency key belongs to another request
├── UploadRefused           the file cannot be an input of a workflow
│   ├── InvalidUploadName
│   ├── InvalidImage
│   ├── InvalidLatent
│   ├── ImageNotFetched         the URL has no image, or this service fetches none
│   └── TooManyUploadBytes      the uploads of the owner would take too many bytes
└── TryLater                the same request may succeed after `retry_after_s`
    ├── RateExceeded
    ├── TooManyOpenJobs
    ├── TooManyWaits            too many requests of the owner wait for results
    ├── TooManyStreams          the owner or this process has too many open streams
    ├── TooManyBytes            the jobs of the owner take too many bytes
    │   ├── TooManyLogBytes
    │   └── TooManyResultBytes
    ├── QueueFull
    ├── EndpointDraining        the endpoint accepts no jobs now
    ├── TooManyEndpoints        the owner or the service has too many endpoints
    ├── Busy                    other bodies are being read or checked
    └── NameServerUnavailable
"""

from __future__ import annotations

from enum import StrEnum

from events.errors import ServiceError
from events.store.records import Scope


class RequestRefused(ServiceError):
    """The request is refused."""


class KeyRefused(RequestRefused):
    """The API key does not permit this request."""


class KeyMissing(KeyRefused):
    """Send an API key as Authorization: Bearer <API_KEY>."""


class KeyInvalid(KeyRefused):
    """The API key is not valid."""


class ScopeMissing(KeyRefused):
    def __init__(self, scope: Scope) -> None:
        super().__init__(f"The API key lacks the scope {scope}.")
        self.scope = scope


class EndpointForbidden(KeyRefused):
    """The API key may not use this endpoint."""


class CallbackHostForbidden(KeyRefused):
    """The API key may not send callbacks to this host."""


class CallbackUrlMissing(RequestRefused):
    """`callback_events` needs a `callback_url`. Add one."""


class QualityOfPng(RequestRefused):
    """A PNG has no quality. Request `image_format` webp or jpeg, or leave `image_quality` out."""


class BodyTooLarge(RequestRefused):
    def __init__(self, excess_bytes: int) -> None:
        super().__init__(
            f"The body is {excess_bytes:,} bytes too large, not counting its inline images."
        )


class EndpointNotFound(RequestRefused):
    """There is no such endpoint."""


class EndpointExists(RequestRefused):
    """An endpoint with this id exists. Choose another id, or change the endpoint (PATCH)."""


class EndpointChanged(RequestRefused):
    def __init__(self, revision: int) -> None:
        super().__init__(f"The endpoint has revision {revision} now. Read the endpoint again.")
        self.revision = revision


class EndpointNotDeletable(RequestRefused):
    """An endpoint of the settings cannot be deleted. Drain it: PATCH with `draining`."""


class JobNotFound(RequestRefused):
    """There is no such job."""


class OtherFlavour(JobNotFound):
    """The caller's job is of the other flavour."""

    def __init__(self, flavour: str) -> None:
        super().__init__(
            f"This job has the {flavour} flavour. Its result is at /{flavour}/v1/result and at "
            "/v1/jobs/{id}/result."
        )


class JobNotResubmittable(RequestRefused):
    """Only a job that has failed can be submitted again."""


class WorkflowNotFound(RequestRefused):
    """There is no such workflow."""


class WorkflowExists(RequestRefused):
    """A workflow with this name exists. Choose another name, or change the workflow (PATCH)."""


class WorkflowChanged(RequestRefused):
    """The workflow was changed at the same time. Read it again."""


class TooManyWorkflows(RequestRefused):
    """The owner has too many workflows, versions or bytes of them. Delete a workflow."""


class CursorGone(RequestRefused):
    def __init__(self, why: str) -> None:
        super().__init__(f"{why} List your jobs (GET /v1/jobs), then follow them without a cursor.")


class KeyNotFound(RequestRefused):
    """There is no such key."""


class KeyNotRotatable(RequestRefused):
    """The key cannot be rotated."""


class IdempotencyConflict(RequestRefused):
    """This Idempotency-Key was used for another request."""


class UploadRefused(RequestRefused):
    """The file cannot be an input of a workflow."""


class InvalidUploadName(UploadRefused):
    """The name of the file is not valid."""


class InvalidImage(UploadRefused):
    """The file is not a supported image."""


class InvalidLatent(UploadRefused):
    """The file is not a supported latent."""


class ImageNotFetched(UploadRefused):
    """The image could not be fetched."""


class TooManyUploadBytes(UploadRefused):
    def __init__(self, used_bytes: int, size_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"The uploads of this owner take {used_bytes:,} of {max_bytes:,} bytes, and the new "
            f"file has {size_bytes:,} bytes. Remove uploads (DELETE /v1/uploads/<name>). Their "
            "files are removed once no accepted job can need them."
        )
        self.used_bytes = used_bytes
        self.max_bytes = max_bytes


class TryLater(RequestRefused):
    """The request cannot be accepted now."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Limited(StrEnum):
    """A kind of limit: of a key or of an owner. Error messages begin with the value."""

    KEY = "The key"
    OWNER = "All keys of this owner together"


class RateExceeded(TryLater):
    def __init__(self, limited: Limited, rate_per_s: float, *, retry_after_s: int) -> None:
        message = f"{limited} may send {rate_per_s:g} requests a second."
        super().__init__(message, retry_after_s=retry_after_s)


class TooManyOpenJobs(TryLater):
    def __init__(self, limited: Limited, max_open_jobs: int) -> None:
        message = f"{limited} may have {max_open_jobs} jobs that wait or run."
        super().__init__(message, retry_after_s=5)


class TooManyWaits(TryLater):
    def __init__(self, max_waits: int) -> None:
        message = (
            f"{Limited.OWNER} may have {max_waits} requests that wait for a result in each HTTP "
            "process. Send the request without `wait`, or send it again when another request has "
            "its answer."
        )
        super().__init__(message, retry_after_s=5)


class TooManyStreams(TryLater):
    def __init__(self, whose: str, max_streams: int) -> None:
        message = (
            f"{whose} may have {max_streams} event streams open in each HTTP process. Close a "
            "stream, or follow all jobs with one stream (GET /v1/events)."
        )
        super().__init__(message, retry_after_s=5)


class TooManyBytes(TryLater):
    """The jobs of the owner take too many bytes."""

    def __init__(self, what: str, used_bytes: int, max_bytes: int, *, until: str) -> None:
        message = (
            f"{what} of this owner take {used_bytes:,} of {max_bytes:,} bytes. Erase jobs "
            f"(DELETE /v1/jobs/<id>), or wait until some {until}."
        )
        super().__init__(message, retry_after_s=60)
        self.used_bytes = used_bytes
        self.max_bytes = max_bytes


class TooManyLogBytes(TooManyBytes):
    def __init__(self, used_bytes: int, max_bytes: int) -> None:
        until = "have ended and left the event log"
        super().__init__("The jobs", used_bytes, max_bytes, until=until)


class TooManyResultBytes(TooManyBytes):
    def __init__(self, used_bytes: int, max_bytes: int) -> None:
        until = "have passed their retention time"
        super().__init__("The results", used_bytes, max_bytes, until=until)


class QueueFull(TryLater):
    def __init__(self, endpoint_id: str, *, retry_after_s: int) -> None:
        message = f"The queue of endpoint {endpoint_id} is full."
        super().__init__(message, retry_after_s=retry_after_s)


class EndpointDraining(TryLater):
    def __init__(self, endpoint_id: str) -> None:
        message = f"The endpoint {endpoint_id} is being drained and accepts no jobs now."
        super().__init__(message, retry_after_s=60)


class TooManyEndpoints(TryLater):
    def __init__(self, whose: str, max_endpoints: int) -> None:
        message = f"{whose} may have {max_endpoints} endpoints. Delete one that is not needed."
        super().__init__(message, retry_after_s=60)


class Busy(TryLater):
    def __init__(self) -> None:
        message = "The service is busy with other large requests. Try again."
        super().__init__(message, retry_after_s=5)


class NameServerUnavailable(TryLater):
    def __init__(self, host: str) -> None:
        message = f"The name server did not resolve the callback's host {host}. Try again."
        super().__init__(message, retry_after_s=2)
