"""Errors of all parts of the service except the engine.

ServiceError
├── LogUnavailable      nothing was stored: the event log is not connected
├── LogFull             nothing was stored: the event log is full
├── OutcomeUnknown      the event log did not answer in time; it may have stored the event
├── ReadTimeout         the event log did not return every event of a job in time
├── HistoryGone         the events before an append were removed from the log
├── HistoryBroken       a history object is damaged
├── JobUnreadable       a job has an event that this process cannot read
│   ├── JobOfLaterVersion   the event was written by a later version, which can read it
│   └── JobDamaged          a stored message is not an event
├── DatabaseUnavailable the database is not available
├── OlderData           a version before 0.2.0 wrote the data
├── TextNotStorable     a text has characters that a database cannot store
├── RowRefused          the database refused a row
├── AddressNotAllowed   a URL that this service must not call
└── FetchFailed         the file at a URL could not be fetched
"""

from __future__ import annotations


class ServiceError(Exception):
    """Something outside a job went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class LogUnavailable(ServiceError):
    """The event log is not connected; nothing was stored. Try again."""


class LogFull(ServiceError):
    """The event log is full; nothing was stored. Raise its max_bytes or remove old jobs."""


class OutcomeUnknown(ServiceError):
    """The event log did not answer in time. Repeat the request with the same Idempotency-Key."""


class ReadTimeout(ServiceError):
    """The event log did not return every event of the job in time."""


class HistoryGone(ServiceError):
    """The history of this job was removed from the event log."""


class HistoryBroken(ServiceError):
    """The history object of a job is not what was written. Restore it from a backup."""


class JobUnreadable(ServiceError):
    """The job has an event that this process cannot read."""


class JobOfLaterVersion(JobUnreadable):
    """The job has an event of a later version of the service, which can read it. Try again."""


class JobDamaged(JobUnreadable):
    """The events of this job in the log are damaged. Erase the job, or report its id to the
    operator.
    """


class DatabaseUnavailable(ServiceError):
    """The database did not answer."""


class OlderData(ServiceError):
    """This data was written by a version before 0.2.0, which this version cannot read; start with
    an empty data folder and an empty database.
    """

    def __init__(self) -> None:
        super().__init__(" ".join((type(self).__doc__ or "").split()))


class TextNotStorable(ServiceError):
    """A text has the character NUL or half of a surrogate pair. Leave it out."""


class RowRefused(ServiceError):
    """The database refused a row. Its error message is not shown, because it may contain data of
    the row.
    """


class AddressNotAllowed(ServiceError):
    """This address must not be called."""


class FetchFailed(ServiceError):
    """The file at the URL could not be fetched."""
