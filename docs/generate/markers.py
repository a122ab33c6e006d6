"""`<!-- generated: NAME -->` in a page is replaced by the text of the generator with this name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from docs.generate.events import event_types
from docs.generate.nodes import nodes
from docs.generate.routes import http_routes
from settings.__main__ import markdown as settings_table

GENERATORS: Mapping[str, Callable[[], str]] = {
    "events": event_types,
    "nodes": nodes,
    "routes": http_routes,
    "settings": settings_table,
}

_MARKER = re.compile(r"^<!-- generated: (?P<name>\w+) -->$", re.MULTILINE)


def fill(markdown: str) -> str:
    """Return the page with markers replaced. Raises KeyError for a name that no generator has."""
    return _MARKER.sub(lambda match: GENERATORS[match["name"]](), markdown)
