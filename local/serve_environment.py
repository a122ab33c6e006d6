"""The environment variables that configure the processes of Ray Serve."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

from local.folders import temporary_folder
from local.haproxy import environment
from local.ports import held_ports
from settings.http import MAX_WAIT_S, HttpSettings

_LONGEST_SOCKET_FOLDER = 27
"""The largest length in bytes of the path of the folder of sockets. HAProxy allows 97 bytes for a
socket, and Serve adds a folder of 56 bytes and the name of the socket.
"""

PORTS = 4
"""The number of ports that Serve needs: for metrics and statistics of HAProxy, and two proxies."""
_REPLICA_PORTS = 100
_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # The memory monitor would end processes by their age. The engine has its own limit.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray's default is 15, which is a low priority.
    "RAY_worker_niceness": "0",
    # With "0" Ray listens on the loopback address, which other machines cannot reach. Without this
    # setting, Ray on Linux uses the address of the machine in the network, which may change.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # "0" turns off the reports of calls, which nothing reads.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    # More frequent exports are useless, because Ray sends the metrics every 10 s.
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    # Ray's agent measures every process for a dashboard that does not run.
    "REPORTER_UPDATE_INTERVAL_MS": "60000",
}


def configure_serve(settings: HttpSettings, data_dir: Path, ports: range) -> int:
    """Set the environment of Serve's processes, and return the port of HAProxy's metrics."""
    folder = haproxy_folder(data_dir)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    metrics_port, stats_port, http_port, grpc_port = ports
    with held_ports(_REPLICA_PORTS) as replicas:
        # A replica cannot listen on a reserved port, so these ports are released at once.
        pass
    for name, value in _RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # Values that the operator has set are kept.
    os.environ |= _haproxy(data_dir, metrics_port, stats_port, MAX_WAIT_S)
    os.environ |= environment(settings, folder)
    os.environ |= {
        "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S": "1",
        # Three failed checks mean that HAProxy is dead. The default period of Serve is 10 s.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0",
        # Serve listens with SO_REUSEPORT, so on the default ports two instances would receive each
        # other's requests.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http_port),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc_port),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
    }
    return metrics_port


def haproxy_folder(data_dir: Path) -> Path:
    """Return the folder of HAProxy's configuration, which its command line names."""
    return (data_dir / "haproxy").resolve()


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
        # If a replica refuses a connection or ends without an answer, HAProxy uses another replica.
        # A request that was already sent is repeated only if it is a GET (see `haproxy.py`).
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        # After about three seconds, a replica that hangs gets no more requests.
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_FALL": "3",
        # HAProxy is replaced when a replica starts or ends. The old HAProxy answers its open
        # requests, and ends after this time at the latest.
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": str(math.ceil(longest_wait_s) + 10),
    }
