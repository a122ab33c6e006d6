"""The lock of a device, and the devices that a standby takes."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from uuid import uuid4

import pytest

from actors.worker.standby import DeviceLock, Devices


@pytest.mark.parametrize(
    ("visible", "node", "is_right"),
    [("3", "a", True), ("3", "b", False), ("", "b", True), (None, "a", True)],
    ids=["same node", "another node", "no devices", "all devices"],
)
def test_a_process_takes_no_devices_of_another_node(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, node: str, is_right: bool
) -> None:
    """Ray starts it with what it was made with, wherever its place has gone."""
    context = SimpleNamespace(get_node_id=lambda: node)
    monkeypatch.setattr("actors.worker.standby.ray.get_runtime_context", lambda: context)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    devices = Devices("a", visible)
    if is_right:
        devices.adopt()
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible
        return
    with pytest.raises(RuntimeError, match="another node"):
        devices.adopt()


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names")

HOLD = """
import sys
from actors.worker.standby import DeviceLock
turn = DeviceLock(sys.argv[1])
assert turn.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@on_linux
def test_one_at_a_time_has_it() -> None:
    worker = str(uuid4())
    first, second, other = DeviceLock(worker), DeviceLock(worker), DeviceLock(str(uuid4()))
    assert first.acquire()
    assert first.acquire(), "it has it still"
    assert not second.acquire()
    assert (first.is_held, second.is_held) == (True, False)
    assert other.acquire()
    first.release()
    assert second.acquire()
    for turn in (second, other):
        turn.release()


@on_linux
def test_it_is_free_once_its_holder_was_killed() -> None:
    worker = str(uuid4())
    command = [sys.executable, "-c", HOLD, worker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turn = DeviceLock(worker)
        waiting = threading.Thread(target=turn.wait, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        holder.kill()
        waiting.join(5)
        assert turn.is_held
        turn.release()


def test_where_there_are_no_such_names_the_only_process_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EINVAL))
    turn = DeviceLock(str(uuid4()))
    assert turn.acquire()
    turn.release()


@on_linux
def test_a_system_that_refuses_the_name_is_no_holder_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EPERM))
    with pytest.raises(PermissionError):
        DeviceLock(str(uuid4())).wait()


def refuse(number: int) -> Callable[..., None]:
    def bind(*_: object) -> None:
        raise OSError(number, "refused")

    return bind
