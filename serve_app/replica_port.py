"""Restricts the address of a replica's gRPC port and the size of its websocket messages.

Ray Serve has no settings for these restrictions.

The gRPC server of a replica receives calls of other deployments as pickles, without a token.
Anyone who can reach the server can therefore run code in the replica. By default the server
listens on every address of the machine (`ray/serve/_private/replica.py`). Here it listens only on
the address of its node.

The HTTP server of a replica buffers up to 16 MiB of each websocket message by default, before the
application receives the message. Here the size is limited.
"""

from __future__ import annotations

from typing import Any

import ray
import ray.serve._private.replica as replica_module
from ray._common.tls_utils import add_port_to_grpc_server
from ray.serve._private.http_util import start_asgi_http_server


def listen_on_node_address() -> None:
    """Make the gRPC server of this process's replica listen on the node's address only.

    The replica's constructor must call this, because the server starts after the constructor.
    """
    setattr(replica_module, add_port_to_grpc_server.__name__, _on_node_address)


def limit_websocket_messages(max_bytes: int) -> None:
    """Limit the size of websocket messages. A longer message closes the websocket (code 1009).

    The replica's constructor must call this, like `listen_on_node_address`.
    """

    async def start(*args: Any, **kwargs: Any) -> Any:
        task, server = await start_asgi_http_server(*args, **kwargs)
        server.config.ws_max_size = max_bytes  # The server reads this value for each connection.
        return task, server

    setattr(replica_module, start_asgi_http_server.__name__, start)


def _on_node_address(server: Any, address: str) -> Any:
    port = address.rpartition(":")[2]
    return add_port_to_grpc_server(server, f"{ray.util.get_node_ip_address()}:{port}")
