"""Streams that follow the progress of a job."""

from __future__ import annotations

from serve_app.adapters.newest import Newest
from tests.support.edge import Edge


def followed(edge: Edge) -> Newest | None:
    """What the last stream that follows a job has not sent yet; None while there is none."""
    found = [getattr(each, "__self__", None) for each in edge.progress.listeners]
    return next((each for each in reversed(found) if isinstance(each, Newest)), None)
