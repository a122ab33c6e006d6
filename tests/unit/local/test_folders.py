import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.folders import (
    UnsafeFolder,
    UnwritableFolder,
    keep_logs,
    make_data_folder,
    make_private,
    require_room,
    temporary_folder,
)
from local.nats_server import write_private


def test_a_private_folder_is_made_once_and_taken_again(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    for _ in range(2):
        make_private(folder)
    assert folder.stat().st_mode & 0o777 == 0o700


def enterable(path: Path, _: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def linked(path: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    path.symlink_to(target)


@pytest.mark.parametrize(
    "make",
    [enterable, linked, Path.symlink_to, lambda path, _: path.touch(mode=0o700)],
    ids=["others may enter", "a link", "a link to nothing", "a file"],
)
def test_what_may_not_be_private_is_refused(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    make(tmp_path / "sockets", tmp_path / "elsewhere")
    with pytest.raises(UnsafeFolder):
        make_private(tmp_path / "sockets")


def test_another_users_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(tmp_path / "sockets")
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(UnsafeFolder):
        make_private(tmp_path / "sockets")
    with pytest.raises(UnsafeFolder, match="belongs to another user"):
        make_data_folder(tmp_path)


def test_a_temporary_folder_is_private_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = temporary_folder(Path("/data"))
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to("/data")
    assert temporary_folder(Path("/data")) == temporary_folder(tmp_path / "link") == folder
    assert temporary_folder(Path("/other")) != folder


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o770, 0o777])
def test_a_data_folder_that_others_may_enter_is_closed_if_empty_and_else_refused(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "new" / "data"
    make_data_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(mode)
    make_data_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "secret").touch()
    make_data_folder(folder)
    folder.chmod(mode)
    with pytest.raises(UnsafeFolder, match="chmod 700"):
        make_data_folder(folder)
    assert folder.stat().st_mode & 0o777 == mode


def test_logs_of_a_session_take_the_place_of_older_ones(tmp_path: Path) -> None:
    logs = tmp_path / "data" / "logs" / "ray"
    (tmp_path / "data").mkdir()
    for number in (1, 2):
        session = tmp_path / f"session_{number}"
        (session / "logs").mkdir(parents=True)
        (session / "logs" / f"{number}.err").touch()
        keep_logs(session / "logs", logs)
        assert [path.name for path in logs.iterdir()] == [f"{number}.err"]
    keep_logs(tmp_path / "none", logs)
    assert [path.name for path in logs.iterdir()] == ["2.err"]


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_folder_without_room_or_in_a_file_is_reported_with_the_reason(tmp_path: Path) -> None:
    require_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    reason = "cannot be written: File too large"
    with largest_file(4096), pytest.raises(UnwritableFolder, match=reason):
        require_room(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(UnwritableFolder, match="cannot be created: Not a directory"):
        make_data_folder(tmp_path / "file" / "data")


def test_a_private_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_private(path, "first")
    with largest_file(4), pytest.raises(OSError, match="File too large"):
        write_private(path, "second")
    assert path.read_text() == "first"
    write_private(path, "second")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("second", 0o600)
    assert list(tmp_path.iterdir()) == [path]
