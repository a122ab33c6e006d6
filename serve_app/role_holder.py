"""The deployment that holds the role actors. Its replica does not load the rest of the API."""

from __future__ import annotations

from serve_app.replica_port import listen_on_node_address


class Roles:
    """Holds the deployment-scoped actors, and does nothing else."""

    def __init__(self) -> None:
        listen_on_node_address()
