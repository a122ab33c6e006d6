"""The environment from which Ray Serve's processes take their settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from serve_app.local.folders import temporary_folder
from serve_app.local.haproxy import environment
from serve_app.local.ports import free_ports
from serve_app.local.stale_processes import stop_stale_processes
from settings.http import HttpSettings

_LONGEST_SOCKET_FOLDER = 27
"""Bytes. HAProxy allows 97 for a socket; Serve adds a folder of 56 and the socket's name."""

_REPLICA_PORTS = 100
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # It ends processes by how long they have worked; the engine has a limit of its own.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray's default is 15: its workers would run after everything else on the machine.
    "RAY_worker_niceness": "0",
}


def configure_serve(settings: HttpSettings, data_dir: Path) -> int:
    """Set the environment that Serve's processes inherit; returns the port of HAProxy's metrics.

    A stale HAProxy still holds our port, so it is ended first.
    """
    folder = (data_dir / "haproxy").absolute()
    stop_stale_processes(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    metrics_port, stats_port, http_port, grpc_port, *replicas = free_ports(4 + _REPLICA_PORTS)
    os.environ |= _RAY_ENVIRONMENT | _haproxy(folder, metrics_port, stats_port)
    os.environ |= environment(settings, folder)
    os.environ |= {
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        # Serve listens with SO_REUSEPORT: on its usual ports two instances would get each other's
        # requests.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http_port),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc_port),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
    }
    return metrics_port


def _haproxy(folder: Path, metrics_port: int, stats_port: int) -> dict[str, str]:
    is_short = len(str(folder)) <= _LONGEST_SOCKET_FOLDER
    sockets = folder if is_short else temporary_folder(folder)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1" if sys.platform == "linux" else "0",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(sockets / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(sockets / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics_port),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats_port),
        "RAY_SERVE_HAPROXY_NBTHREAD": "2",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "5",
    }
