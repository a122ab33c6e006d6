"""Ports of this machine that nobody listens on."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_FIRST = 20_000
_PAST = 30_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> range:
    """So many ports in a row that are free on every interface.

    The kernel gives them to no connection that goes out, before they are listened on: they lie
    below the ports that it does give, unless those begin very low.
    """
    candidates = range(_FIRST, past_of(_EPHEMERAL) - count)
    while True:
        first = random.choice(candidates)
        ports = range(first, first + count)
        if are_free(ports):
            return ports


def past_of(ephemeral: Path) -> int:
    """The port before which free ones are looked for, by the kernel's row of ephemeral ports."""
    try:
        lowest = int(ephemeral.read_text().split()[0])
    except OSError:  # not Linux: they begin at 49,152
        return _PAST
    return lowest if lowest > _FIRST + 1000 else _PAST


def are_free(ports: range) -> bool:
    with ExitStack() as probes:
        try:
            for port in ports:
                probes.enter_context(socket.socket()).bind(("", port))
        except OSError:
            return False
    return True
