"""Links between pages: in the repository they lead to files, and on the site to pages.

The same text serves both. `[Security](../SECURITY.md)` is a link to a file of the repository, which
the site has as the page `security.md`.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath, relpath

DOCS = "docs/"

OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
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
    """A page links to a file that the site lacks. Add it to `OUTSIDE`, or remove the link."""


def site_path(path: str) -> str:
    """Return the path on the site of a file of the repository. Raises NotOnTheSite."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    if path == "README.md":
        return "index.md"
    if path in OUTSIDE:
        return path.lower()
    raise NotOnTheSite(path)


def relink(markdown: str, source: str) -> str:
    """Return the text of the page `source`, a path in the repository, with links for the site.

    Raises NotOnTheSite.
    """
    here = dirname(site_path(source))

    def replaced(match: re.Match[str]) -> str:
        target = normpath(join(dirname(source), match["path"]))
        return relpath(site_path(target), here or ".")

    return LINK.sub(replaced, markdown)
