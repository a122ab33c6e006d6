"""Links from page to page: they lead to files in the repository, and to pages on the site.

A page is written for both. `[Security](../SECURITY.md)` is right in the repository; the site has
that file too, as the page `security.md`.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath, relpath

DOCS = "docs/"

OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "client/README.md",
    "deploy/ray-cluster.yaml",
    "examples/demo.py",
    "examples/receiver.py",
    "examples/subscriber/follow.mjs",
    "examples/subscriber/follow.py",
    "examples/workflow.json",
    "models/checkpoints/darkroom-shapes.md",
    "models/checkpoints/darkroom-z-shapes.md",
)
"""Files outside of `docs/` that the site shows too."""

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)(?=[)#])")


class NotOnTheSite(LookupError):
    """A page links to a file that is no part of the site. Add it to `OUTSIDE`, or name it only."""


def site_path(path: str) -> str:
    """Where the site has a file of the repository. Raises NotOnTheSite."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path in OUTSIDE:
        return path.lower()
    raise NotOnTheSite(path)


def relink(markdown: str, source: str) -> str:
    """The page `source`, a path in the repository, with its links as the site needs them.

    Raises NotOnTheSite.
    """
    here = dirname(site_path(source))

    def replaced(match: re.Match[str]) -> str:
        target = normpath(join(dirname(source), match["path"]))
        return relpath(site_path(target), here or ".")

    return LINK.sub(replaced, markdown)
