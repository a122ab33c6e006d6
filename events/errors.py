"""Errors of the service around the engine.

ServiceError
├── LogUnavailable      nothing was stored: the event log is not connected
│   └── LogDiffers          it is otherwise than the settings say
├── LogFull             nothing was stored: the event log has no room
├── OutcomeUnknown      the event log did not answer in time; it may have stored the event
├── ReadTimeout         the event log did not return every event of a job in time
├── HistoryGone         the events that a write builds on were removed from the log
├── SegmentBroken       a segment of the archive is not what was written
├── ArchiveBusy         a segment of the archive is being written, or could not be
├── JobUnreadable       a job has an event that this process cannot read
│   ├── JobOfLaterVersion   one of a later version, which can
│   └── JobDamaged          one that is none
├── DatabaseUnavailable the database is not available
├── TextNotStorable     a text has characters that a database cannot store
├── RowRefused          the database refused a row
├── AddressNotAllowed   a URL that this service must not call
└── FetchFailed         a URL has nothing that could be fetched
"""

from __future__ import annotations


class ServiceError(Exception):
    """Something outside a job went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class LogUnavailable(ServiceError):
    """The event log is not connected; nothing was stored. Try again."""


class LogDiffers(LogUnavailable):
    """The event log is otherwise than DARKROOM_LOG_STREAMS says; nothing was stored."""


class LogFull(ServiceError):
    """The event log is full; nothing was stored. Raise its max_bytes or remove old jobs."""


class OutcomeUnknown(ServiceError):
    """The event log did not answer in time. Repeat the request with the same Idempotency-Key."""


class ReadTimeout(ServiceError):
    """The event log did not return every event of the job in time."""


class HistoryGone(ServiceError):
    """The history of this job was removed from the event log."""


class SegmentBroken(ServiceError):
    """A segment of the archive is not what was written. Restore it from a backup."""


class ArchiveBusy(ServiceError):
    """A part of the archive is being written. What was asked for is done a little later."""


class JobUnreadable(ServiceError):
    """The job has an event that this process cannot read."""


class JobOfLaterVersion(JobUnreadable):
    """The job has an event of a later version of the service, which can read it. Try again."""


class JobDamaged(JobUnreadable):
    """What the log holds of this job is damaged. Erase it, or tell the operator its id."""


class DatabaseUnavailable(ServiceError):
    """The database did not answer."""


class TextNotStorable(ServiceError):
    """A text has the character NUL or half of a surrogate pair. Leave it out."""


class RowRefused(ServiceError):
    """The database refused a row. What it said may quote the row, so it is not repeated."""


class AddressNotAllowed(ServiceError):
    """This address must not be called."""


class FetchFailed(ServiceError):
    """What the URL names could not be fetched."""
