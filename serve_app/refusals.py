"""Why the edge does not do what it is asked. Knows no HTTP: `serve_app.errors` answers them.

RequestRefused
├── KeyRefused              the key, or its absence, is the reason
│   ├── KeyMissing              the request has no API key
│   ├── KeyInvalid              the API key opens nothing
│   ├── ScopeMissing            the key lacks the scope of the route
│   ├── EndpointForbidden       the key may not use this endpoint
│   └── CallbackHostForbidden   the key may not call this host back
├── CallbackUrlMissing      nobody to tell of what is asked for
├── QualityOfPng            it has none
├── BodyTooLarge            without the images that it brings along
├── EndpointNotFound        also for one of another owner
├── EndpointExists
├── EndpointChanged         it has another revision than the caller said
├── EndpointNotDeletable    the default endpoint
├── JobNotFound             also for a job of another owner
├── JobNotResubmittable     the job has not failed
├── CursorGone              what follows it is not at hand
├── KeyNotFound
├── KeyNotRotatable         the key has ended, or has a successor
├── IdempotencyConflict     the idempotency key belongs to another request
├── UploadRefused           the file is not taken as an input of a workflow
│   ├── InvalidUploadName
│   ├── InvalidImage
│   ├── InvalidLatent
│   ├── ImageNotFetched     what its URL has, or that it is fetched at all
│   └── TooManyUploadBytes  the owner keeps enough
└── TryLater                the same request may be taken after `retry_after_s`
    ├── RateExceeded
    ├── TooManyOpenJobs
    ├── TooManyWaits        of the owner, for results
    ├── TooManyStreams      of the owner, or in this process
    ├── TooManyBytes        what the owner keeps
    │   ├── TooManyLogBytes
    │   └── TooManyResultBytes
    ├── QueueFull
    ├── EndpointDraining    it takes no jobs now
    ├── TooManyEndpoints    of the owner, or in all
    ├── NoTurn              other bodies are being read or checked
    └── NameServerUnavailable
"""

from __future__ import annotations

from enum import StrEnum

from events.errors import ServiceError
from events.store.records import Scope


class RequestRefused(ServiceError):
    """The request is refused."""


class KeyRefused(RequestRefused):
    """The API key does not open this."""


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
    """The API key may not call this host back."""


class CallbackUrlMissing(RequestRefused):
    """`callback_events` says what a `callback_url` is told of. Add one."""


class QualityOfPng(RequestRefused):
    """A PNG has no quality. Ask for `image_format` webp or jpeg, or leave `image_quality` out."""


class BodyTooLarge(RequestRefused):
    def __init__(self, excess_bytes: int) -> None:
        super().__init__(
            f"The body has {excess_bytes:,} bytes too many beside the images that it brings along."
        )


class EndpointNotFound(RequestRefused):
    """There is no such endpoint."""


class EndpointExists(RequestRefused):
    """There is an endpoint of this id. Choose another one, or change that (PATCH)."""


class EndpointChanged(RequestRefused):
    def __init__(self, revision: int) -> None:
        super().__init__(f"The endpoint is at revision {revision} now. Read it again.")
        self.revision = revision


class EndpointNotDeletable(RequestRefused):
    """The default endpoint cannot be deleted. Drain it: PATCH with `draining`."""


class JobNotFound(RequestRefused):
    """There is no such job."""


class OtherFlavour(JobNotFound):
    """The caller's job is of the other flavour."""

    def __init__(self, flavour: str) -> None:
        super().__init__(
            f"This job is of the {flavour} flavour: its result is at /{flavour}/v1/result, and at "
            "/v1/jobs/{id}/result as that of any job."
        )


class JobNotResubmittable(RequestRefused):
    """Only a job that has failed can be submitted again."""


class CursorGone(RequestRefused):
    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why} List your jobs (GET /v1/jobs), and follow from now on, without a cursor."
        )


class KeyNotFound(RequestRefused):
    """There is no such key."""


class KeyNotRotatable(RequestRefused):
    """The key cannot be rotated."""


class IdempotencyConflict(RequestRefused):
    """This Idempotency-Key was used for another request."""


class UploadRefused(RequestRefused):
    """The file is not taken as an input of a workflow."""


class InvalidUploadName(UploadRefused):
    """The name of the file is not taken."""


class InvalidImage(UploadRefused):
    """The file is no image that is taken."""


class InvalidLatent(UploadRefused):
    """The file is no latent that is taken."""


class ImageNotFetched(UploadRefused):
    """The image could not be fetched."""


class TooManyUploadBytes(UploadRefused):
    def __init__(self, used_bytes: int, size_bytes: int, max_bytes: int) -> None:
        super().__init__(
            f"With {size_bytes:,} bytes more the uploads of this owner would take more than "
            f"{max_bytes:,}; they take {used_bytes:,}. Remove uploads (DELETE "
            "/v1/uploads/<name>); their files go once no accepted job can need them."
        )
        self.used_bytes = used_bytes
        self.max_bytes = max_bytes


class TryLater(RequestRefused):
    """The request cannot be taken now."""

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Limited(StrEnum):
    """Whose limit was reached, as its message begins."""

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
            f"{Limited.OWNER} may have {max_waits} requests that wait for a result, in each HTTP "
            "process. Ask without `wait`, or once another has its answer."
        )
        super().__init__(message, retry_after_s=5)


class TooManyStreams(TryLater):
    def __init__(self, whose: str, max_streams: int) -> None:
        message = (
            f"{whose} may have {max_streams} event streams open, in each HTTP process. Close one, "
            "or follow all jobs on one (GET /v1/events)."
        )
        super().__init__(message, retry_after_s=5)


class TooManyBytes(TryLater):
    """What the owner keeps takes too many bytes."""

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
        until = "have ended and moved from the event log to the archive"
        super().__init__("The jobs", used_bytes, max_bytes, until=until)


class TooManyResultBytes(TooManyBytes):
    def __init__(self, used_bytes: int, max_bytes: int) -> None:
        until = "are over their retention"
        super().__init__("The results", used_bytes, max_bytes, until=until)


class QueueFull(TryLater):
    def __init__(self, endpoint_id: str, *, retry_after_s: int) -> None:
        message = f"The queue of endpoint {endpoint_id} is full."
        super().__init__(message, retry_after_s=retry_after_s)


class EndpointDraining(TryLater):
    def __init__(self, endpoint_id: str) -> None:
        message = f"The endpoint {endpoint_id} is being drained and takes no jobs now."
        super().__init__(message, retry_after_s=60)


class TooManyEndpoints(TryLater):
    def __init__(self, whose: str, max_endpoints: int) -> None:
        message = f"{whose} may have {max_endpoints} endpoints. Delete one that is not needed."
        super().__init__(message, retry_after_s=60)


class NoTurn(TryLater):
    def __init__(self) -> None:
        message = "The service is busy with other large requests. Try again."
        super().__init__(message, retry_after_s=5)


class NameServerUnavailable(TryLater):
    def __init__(self, host: str) -> None:
        message = f"The name server did not say where the callback's host {host} is. Try again."
        super().__init__(message, retry_after_s=2)
