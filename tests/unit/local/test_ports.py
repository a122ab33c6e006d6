"""Ports that nobody listens on, and that nobody else is given meanwhile."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from local.ports import PortTaken, held_port, held_ports, ports_end


def listen(host: str, port: int) -> socket.socket:
    """As servers do."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen()
    return server


def test_none_of_them_is_given_to_a_connection() -> None:
    with held_ports(20) as ports:
        assert len(ports) == 20
        assert ports.stop <= ports_end(Path("/proc/sys/net/ipv4/ip_local_port_range"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_those_that_are_taken_on_any_interface_are_passed_over(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_ports(3) as free:
        pass
    choices = iter([free.start, free.start + 3])
    monkeypatch.setattr("random.choice", lambda _: next(choices))
    with listen(host, free[1]), held_ports(3) as ports:
        assert ports.start == free.start + 3


def test_what_is_held_is_not_chosen_again_and_its_holder_can_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with held_ports(2) as ports:
        choices = iter([ports.start - 1, ports.start, ports.start + 1, ports.start + 2])
        monkeypatch.setattr("random.choice", lambda _: next(choices))
        with held_ports(2) as others:
            assert others.start == ports.start + 2
        for host, port in zip(("127.0.0.1", ""), ports, strict=True):
            with listen(host, port) as server, socket.create_connection(("127.0.0.1", port), 5):
                server.accept()[0].close()


def test_the_holder_of_a_port_that_was_asked_for_is_told() -> None:
    with held_ports(1) as ports:
        pass
    with listen("127.0.0.1", ports[0]):
        with pytest.raises(PortTaken) as raised, held_port("127.0.0.1", ports[0], patience_s=0):
            pass
        assert f"127.0.0.1:{ports[0]} is already in use by " in str(raised.value)
        assert f"(process {os.getpid()})" in str(raised.value)


def test_a_port_that_is_about_to_be_free_is_waited_for() -> None:
    with held_ports(1) as ports:
        pass
    server = listen("127.0.0.1", ports[0])
    threading.Timer(0.1, server.close).start()
    with held_port("127.0.0.1", ports[0], patience_s=10), listen("127.0.0.1", ports[0]):
        pass


@pytest.mark.parametrize(
    ("text", "past"), [("32768\t60999\n", 32768), ("1024 65535\n", 30000), (None, 30000)]
)
def test_they_lie_below_the_ephemeral_ports(tmp_path: Path, text: str | None, past: int) -> None:
    path = tmp_path / "ip_local_port_range"
    if text is not None:
        path.write_text(text)
    assert ports_end(path) == past
