"""What holds the role actors: a module of its own, since its replica needs nothing else."""

from __future__ import annotations

from serve_app.replica_port import listen_on_node_address


class Roles:
    """Holds the deployment-scoped actors; does nothing itself."""

    def __init__(self) -> None:
        listen_on_node_address()
