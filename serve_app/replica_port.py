"""What Ray Serve has no setting for at the ports of a replica: who reaches them, with how much.

A replica takes calls of other deployments on the address of its node alone. Its gRPC server for
them asks for no token, and a call is a pickle: who reaches it runs code in the replica. By itself
it listens on every address of the machine (`ray/serve/_private/replica.py`).

Its HTTP server takes messages of bounded size on websockets. By itself it holds 16 MiB of each one,
before any of our code knows of it.
"""

from __future__ import annotations

from typing import Any

import ray
import ray.serve._private.replica as replica_module
from ray._common.tls_utils import add_port_to_grpc_server
from ray.serve._private.http_util import start_asgi_http_server


def listen_on_node_address() -> None:
    """For the replica in this process. Its constructor calls this: the server starts after it."""
    setattr(replica_module, add_port_to_grpc_server.__name__, _on_node_address)


def limit_websocket_messages(max_bytes: int) -> None:
    """As `listen_on_node_address`. A longer message closes its websocket (1009)."""

    async def start(*args: Any, **kwargs: Any) -> Any:
        task, server = await start_asgi_http_server(*args, **kwargs)
        server.config.ws_max_size = max_bytes  # which it reads for each connection
        return task, server

    setattr(replica_module, start_asgi_http_server.__name__, start)


def _on_node_address(server: Any, address: str) -> Any:
    port = address.rpartition(":")[2]
    return add_port_to_grpc_server(server, f"{ray.util.get_node_ip_address()}:{port}")
