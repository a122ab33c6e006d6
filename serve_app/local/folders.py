"""Folders that nobody but this user may enter."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077


class UnsafeFolder(RuntimeError):
    """A folder that another user may enter, or has made."""


def make_private(folder: Path) -> None:
    """Make a folder in /tmp that only this user can open. Raises UnsafeFolder."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != os.getuid()
        or stat.S_IMODE(found.st_mode) != 0o700
    ):
        raise UnsafeFolder(
            f"{folder} is not a folder of this user alone (mode 0700): remove it, or set TMPDIR"
        )


def make_data_folder(folder: Path) -> None:
    """Make the data folder, or close an empty one to others. Raises UnsafeFolder for any other."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise UnsafeFolder(
            f"the data folder {folder} is another user's: set DARKROOM_DATA_DIR to one of this user"
        )
    if not found.st_mode & _OTHERS:
        return
    if any(folder.iterdir()):
        raise UnsafeFolder(
            f"other users may enter the data folder {folder}, which holds keys and pictures: "
            f"close it with `chmod 700 {folder}`, then start again"
        )
    folder.chmod(0o700)


def temporary_folder(purpose: Path) -> Path:
    """A private folder in /tmp that is always the same for `purpose`. Raises UnsafeFolder.

    Its path is short, as the paths of sockets have to be.
    """
    name = hashlib.sha256(os.fsencode(purpose.absolute())).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"darkroom-{name}"
    make_private(folder)
    return folder


def put_logs_away(found: Path, logs: Path) -> None:
    """Move the logs of an ended Ray session, if there are any, to `logs`, in the place of older."""
    if found.is_dir():
        shutil.rmtree(logs, ignore_errors=True)
        with suppress(OSError, shutil.Error):  # a disk without room keeps nobody from stopping
            logs.parent.mkdir(exist_ok=True, mode=0o700)
            shutil.move(found, logs)
