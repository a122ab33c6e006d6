"""How a command ends, for scripts; `docs/command-line.md` has the same table."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    """The job failed or was cancelled, a check found something, or it could not be done."""
    USAGE = 2
    """An option, an argument, a file that was given, or a setting is wrong."""
    REFUSED = 3
    """The service refuses the request as it is."""
    NOT_FOUND = 4
    """There is no such job, key, endpoint or file, or not for this key."""
    FORBIDDEN = 5
    """There is no key, it is not valid, or it may not do this."""
    UNAVAILABLE = 6
    """The service, or a part of it that the command needs, does not answer or cannot do it now."""
    LIMITED = 7
    """A limit is reached: rate, open jobs, a full queue. The same may be taken later."""
    INTERRUPTED = 130
    """Ctrl-C: as shells have it, 128 and the number of SIGINT."""


def code_of_status(status: int) -> ExitCode:
    """`status`: of an HTTP answer that is an error."""
    match status:
        case 401 | 403:
            return ExitCode.FORBIDDEN
        case 404 | 410:
            return ExitCode.NOT_FOUND
        case 429:
            return ExitCode.LIMITED
        case _:
            return ExitCode.REFUSED if status < 500 else ExitCode.UNAVAILABLE
