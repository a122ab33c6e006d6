"""Reserves ports of this machine for servers that will listen on them."""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

_FIRST_PORT = 20_000
_PORTS_END = 30_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_RETRY_S = 0.05


class PortTaken(RuntimeError):
    """Another program listens on the requested port."""


@contextmanager
def held_ports(count: int) -> Generator[range]:
    """Reserve `count` consecutive ports, free on every interface, within the `with` block.

    A server that listens on such a port must set SO_REUSEADDR. The ports are below the ephemeral
    range unless this range begins very low, so the kernel uses none for outgoing connections.
    """
    candidates = range(_FIRST_PORT, ports_end(_EPHEMERAL) - count)
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
    """Reserve the given port within the `with` block.

    Raises PortTaken if another program still uses the port after `patience_s` seconds.
    """
    give_up_at = time.monotonic() + patience_s
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        # With this option, the port can be bound while connections of an earlier server are still
        # closing.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        while True:
            try:
                _hold(held, host, port)
                break
            except OSError as error:
                if time.monotonic() > give_up_at:
                    raise PortTaken(
                        f"{host}:{port} is already in use{_listener_on(port)}"
                    ) from error
            time.sleep(_RETRY_S)
        yield


def _hold(held: socket.socket, host: str, port: int) -> None:
    """Bind the port without listening, so that a server of this user can listen. Raises OSError."""
    held.bind((host, port))
    # On systems other than Linux, no other socket can listen on a bound port, so the port is
    # released.
    if sys.platform != "linux":
        held.close()
        return
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def _listener_on(port: int) -> str:
    with suppress(psutil.Error):
        for each in psutil.net_connections(kind="tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
                return f" by {psutil.Process(each.pid).name()} (process {each.pid})"
    return " by a process of another user"


def ports_end(ephemeral: Path) -> int:
    """Return the exclusive upper bound of the ports to choose from."""
    try:
        lowest = int(ephemeral.read_text().split()[0])
    except OSError:  # On systems other than Linux, ephemeral ports begin at 49,152.
        return _PORTS_END
    return lowest if lowest > _FIRST_PORT + 1000 else _PORTS_END
