from __future__ import annotations

import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from actors.worker.device_turn import DeviceTurn

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names")

HOLD = """
import sys
from actors.worker.device_turn import DeviceTurn
turn = DeviceTurn(sys.argv[1])
assert turn.take()
print("held", flush=True)
sys.stdin.read()
"""


@on_linux
def test_one_at_a_time_has_it() -> None:
    worker = str(uuid4())
    first, second, other = DeviceTurn(worker), DeviceTurn(worker), DeviceTurn(str(uuid4()))
    assert first.take()
    assert first.take(), "it has it still"
    assert not second.take()
    assert (first.is_held, second.is_held) == (True, False)
    assert other.take()
    first.give_back()
    assert second.take()
    for turn in (second, other):
        turn.give_back()


@on_linux
def test_it_is_free_once_its_holder_was_killed() -> None:
    worker = str(uuid4())
    command = [sys.executable, "-c", HOLD, worker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turn = DeviceTurn(worker)
        waiting = threading.Thread(target=turn.wait, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        holder.kill()
        waiting.join(5)
        assert turn.is_held
        turn.give_back()


def test_where_there_are_no_such_names_the_only_process_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EINVAL))
    turn = DeviceTurn(str(uuid4()))
    assert turn.take()
    turn.give_back()


@on_linux
def test_a_system_that_refuses_the_name_is_no_holder_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EPERM))
    with pytest.raises(PermissionError):
        DeviceTurn(str(uuid4())).wait()


def refuse(number: int) -> Callable[..., None]:
    def bind(*_: object) -> None:
        raise OSError(number, "refused")

    return bind
