"""Ports that nobody listens on, and that nobody is given meanwhile."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from serve_app.local.ports import are_free, free_ports, past_of


def test_they_are_free_and_none_is_given_to_a_connection() -> None:
    ports = free_ports(20)
    assert len(ports) == 20
    assert are_free(ports)
    assert ports.stop <= past_of(Path("/proc/sys/net/ipv4/ip_local_port_range"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "0.0.0.0"])
def test_one_that_is_taken_on_any_interface_is_not_free(host: str) -> None:
    ports = free_ports(3)
    with socket.socket() as taken:
        taken.bind((host, ports[1]))
        taken.listen()
        assert not are_free(ports)
    assert are_free(ports)


@pytest.mark.parametrize(
    ("text", "past"), [("32768\t60999\n", 32768), ("1024 65535\n", 30000), (None, 30000)]
)
def test_they_lie_below_the_ephemeral_ports(tmp_path: Path, text: str | None, past: int) -> None:
    path = tmp_path / "ip_local_port_range"
    if text is not None:
        path.write_text(text)
    assert past_of(path) == past
