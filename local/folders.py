"""Makes folders that only this user can enter, and tests whether they can be written."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077
_ROOM_BYTES = 16 * 1024**2


class UnsafeFolder(RuntimeError):
    """The folder belongs to another user, or other users can enter it."""


class UnwritableFolder(RuntimeError):
    """The folder cannot be written, or its disk is full."""


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter. Raises UnsafeFolder."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) != 0o700
    ):
        raise UnsafeFolder(
            f"{folder} must be a folder that only this user can access (mode 0700): remove it, or "
            "set TMPDIR"
        )


def make_data_folder(folder: Path) -> None:
    """Create the data folder, or make an empty one private.

    A folder with content is never changed, so it must already be private. Raises UnsafeFolder,
    UnwritableFolder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UnwritableFolder(f"{folder} cannot be created: {error.strerror}") from error
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise UnsafeFolder(
            f"the data folder {folder} belongs to another user: set DARKROOM_DATA_DIR to a folder "
            "of this user"
        )
    if not found.st_mode & _OTHERS:
        return
    if any(folder.iterdir()):
        raise UnsafeFolder(
            f"other users can read the data folder {folder}, which contains keys and images: run "
            f"`chmod 700 {folder}`, then start again"
        )
    folder.chmod(0o700)


def require_room(folder: Path) -> None:
    """Write a file of 16 MiB in the folder and remove it. Raises UnwritableFolder."""
    path = folder / "room"
    try:
        with path.open("wb") as file:
            file.write(bytes(_ROOM_BYTES))
            os.fsync(file.fileno())
    except OSError as error:
        raise UnwritableFolder(
            f"{folder} cannot be written: {error.strerror}. At least 16 MiB must be free."
        ) from error
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def temporary_folder(data_dir: Path) -> Path:
    """Make the private temporary folder of the data folder. Raises UnsafeFolder.

    Its path is short, because a socket in it must have a short path.
    """
    name = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"darkroom-{name}"
    make_private(folder)
    return folder


def keep_logs(found: Path, logs: Path) -> None:
    """Move the logs of an ended Ray session, if any, to `logs`. Older logs there are removed."""
    if found.is_dir():
        shutil.rmtree(logs, ignore_errors=True)
        with suppress(OSError, shutil.Error):  # A full disk must not prevent the stop.
            logs.parent.mkdir(exist_ok=True, mode=0o700)
            shutil.move(found, logs)
