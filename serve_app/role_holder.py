"""What holds the role actors: a module of its own, since its replica needs nothing else."""

from __future__ import annotations


class Roles:
    """Holds the deployment-scoped actors; does nothing itself."""
