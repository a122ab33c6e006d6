"""The environment from which Ray Serve's processes take their settings."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from serve_app.local.folders import temporary_folder
from serve_app.local.haproxy import environment
from serve_app.local.ports import held_ports
from settings.http import HttpSettings

_LONGEST_SOCKET_FOLDER = 27
"""Bytes. HAProxy allows 97 for a socket; Serve adds a folder of 56 and the socket's name."""

PORTS = 4
"""How many are held for Serve: for HAProxy's metrics and statistics, and for its two proxies."""
_REPLICA_PORTS = 100
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # It ends processes by how long they have worked; the engine has a limit of its own.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray's default is 15: its workers would run after everything else on the machine.
    "RAY_worker_niceness": "0",
    # It listens on the loopback address, as on macOS and Windows: no other machine reaches it, and
    # one that changes its network keeps it. On Linux it takes the machine's address by itself,
    # even where another is asked for.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Nobody reads Ray's record of each call, which every process would report once a second.
    "RAY_task_events_report_interval_ms": "0",
    # How often Serve's controller looks at everything, whether something happens or not.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # How often each replica hands on what it counted of requests. Ray sends it every 10 s.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    # How often Ray's agent looks at every process of the machine, for a dashboard that is not here.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}


def configure_serve(settings: HttpSettings, data_dir: Path, ports: range) -> int:
    """Set the environment that Serve's processes inherit; returns the port of HAProxy's metrics."""
    folder = haproxy_folder(data_dir)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    metrics_port, stats_port, http_port, grpc_port = ports
    with held_ports(_REPLICA_PORTS) as replicas:
        pass  # a replica shares its port with nobody, and takes the next one if it is taken
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # what an operator set stays
    os.environ |= _haproxy(data_dir, metrics_port, stats_port, settings.max_wait_s)
    os.environ |= environment(settings, folder)
    os.environ |= {
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "1",
        # A HAProxy that died is found after three of these; Serve's default is 10.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
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


def haproxy_folder(data_dir: Path) -> Path:
    """Of its configuration and its state. Each HAProxy of ours has it on its command line."""
    return (data_dir / "haproxy").absolute()


def _haproxy(
    data_dir: Path, metrics_port: int, stats_port: int, longest_wait_s: float
) -> dict[str, str]:
    folder = haproxy_folder(data_dir)
    is_short = len(str(folder)) <= _LONGEST_SOCKET_FOLDER
    sockets = folder if is_short else temporary_folder(data_dir)
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
        # A replica that died refuses connections, or had a request and answers nothing: another one
        # is asked. Of requests that were sent, that is for GET alone; see `haproxy.py`.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        # One that hangs is asked no more after some three seconds.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "3",
        # It is replaced whenever a replica comes or goes, and then answers those who wait on it.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(math.ceil(longest_wait_s) + 10),
    }
