"""Values of labels, of which there are no more than a number."""

from __future__ import annotations

from collections.abc import Callable

OTHER = "other"
"""In the place of those beyond that."""


class EndpointLabels:
    """Ids of endpoints. Owners may make endpoints, and each has series that stay."""

    def __init__(self, most: int, *, on_new: Callable[[str], None] = lambda _: None) -> None:
        """`on_new` is told of each label before it is used."""
        self._most = most
        self._on_new = on_new
        self._known: set[str] = set()

    def of(self, endpoint: str) -> str:
        if endpoint in self._known:
            return endpoint
        label = endpoint if len(self._known) < self._most else OTHER
        if label not in self._known:
            self._known.add(label)
            self._on_new(label)
        return label
