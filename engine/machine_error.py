"""Errors of the machine: whoever asks it for a file, a thread or room on a disk meets them."""

from __future__ import annotations

import errno

from engine.errors import MachineFailed, is_caused_by

_NUMBERS = frozenset(
    {
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EROFS,
        errno.ESTALE,
    }
)
_NO_THREAD = "can't start new thread"


def is_machine_error(error: BaseException | None) -> bool:
    """Whether the machine failed: the error itself says so, or one that it was raised from."""
    return is_caused_by(error, _is_of_the_machine)


def _is_of_the_machine(error: BaseException) -> bool:
    match error:
        case MachineFailed():
            return True
        case OSError(errno=number):
            return number in _NUMBERS
        case RuntimeError():
            return _NO_THREAD in str(error)
        case _:
            return False
