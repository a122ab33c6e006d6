"""Ports of this machine, kept for whoever of ours will listen on them."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

_FIRST = 20_000
_PAST = 30_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RETRY_S = 0.05


class PortTaken(RuntimeError):
    """Another program listens on a port that was asked for."""


@contextmanager
def held_ports(count: int) -> Generator[range]:
    """So many ports in a row that are free on every interface, and stay ours meanwhile.

    Who listens on one sets SO_REUSEADDR, as servers do. The kernel gives them to no connection that
    goes out: they lie below the ports that it does give, unless those begin very low.
    """
    candidates = range(_FIRST, past_of(_EPHEMERAL) - count)
    while True:
        first = random.choice(candidates)
        with ExitStack() as holds, suppress(OSError):
            ports = range(first, first + count)
            for port in ports:
                _hold(holds.enter_context(socket.socket()), "", port)
            stay = holds.pop_all()
            break
    with stay:
        yield ports


@contextmanager
def held_port(host: str, port: int, *, patience_s: float = 3.0) -> Generator[None]:
    """A port that was asked for, which stays ours meanwhile. Raises PortTaken.

    One that is taken is tried again for a while: its server may be about to end.
    """
    give_up_at = time.monotonic() + patience_s
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        # Connections of an earlier server may still be closing.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                _hold(held, host, port)
                break
            except OSError as error:
                if time.monotonic() > give_up_at:
                    raise PortTaken(f"{host}:{port} is taken{_by_whom(port)}") from error
            time.sleep(_RETRY_S)
        yield


def _hold(held: socket.socket, host: str, port: int) -> None:
    """Bind it, and let those listen on it who may share it. Raises OSError.

    A socket that only holds is given no connection.
    """
    held.bind((host, port))
    if sys.platform != "linux":  # elsewhere nobody else could bind it
        held.close()
        return
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _by_whom(port: int) -> str:
    """The name and the id of the process, as far as this user may see it."""
    with suppress(psutil.Error):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f" by {psutil.Process(each.pid).name()} (process {each.pid})"
    return " by a process of another user"


def past_of(ephemeral: Path) -> int:
    """The port before which free ones are looked for, by the kernel's row of ephemeral ports."""
    try:
        lowest = int(ephemeral.read_text().split()[0])
    except OSError:  # not Linux: they begin at 49,152
        return _PAST
    return lowest if lowest > _FIRST + 1000 else _PAST
