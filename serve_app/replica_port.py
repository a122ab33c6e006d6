"""A replica of Serve takes calls of other deployments on the address of its node alone.

Its gRPC server for them asks for no token, and a call is a pickle: who reaches it runs code in the
replica. By itself it listens on every address of the machine (`ray/serve/_private/replica.py`).
"""

from __future__ import annotations

from typing import Any

import ray
import ray.serve._private.replica as replica_module
from ray._common.tls_utils import add_port_to_grpc_server


def listen_on_node_address() -> None:
    """For the replica in this process. Its constructor calls this: the server starts after it."""
    setattr(replica_module, add_port_to_grpc_server.__name__, _on_node_address)


def _on_node_address(server: Any, address: str) -> Any:
    port = address.rpartition(":")[2]
    return add_port_to_grpc_server(server, f"{ray.util.get_node_ip_address()}:{port}")
