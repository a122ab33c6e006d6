"""The pages list the versions of the programs that `make clients` installs."""

from __future__ import annotations

import json
import re

from examples.service import ROOT

PAGES = sorted((ROOT / "docs").glob("coming-from-*.md"))
CLIENTS = ROOT / "tests" / "clients"
LISTED = re.compile(r"([@\w/-]+) ([0-9][\w.]*)")


def installed() -> set[tuple[str, str]]:
    """The names and versions in the Makefile and in the files of npm."""
    makefile = (ROOT / "Makefile").read_text()
    found = set(re.findall(r"([\w-]+)==([\w.]+)", makefile))
    for path in CLIENTS.glob("*/package.json"):
        found |= set(json.loads(path.read_text()).get("dependencies", {}).items())
    return found


def test_each_tested_program_has_the_version_that_is_installed() -> None:
    known = installed()
    for page in PAGES:
        rows = page.read_text().partition("## Tested programs")[2].partition("\n## ")[0]
        cells = [row.split("|")[1] for row in rows.splitlines() if row.startswith("| ")]
        listed = [pair for cell in cells for pair in LISTED.findall(cell.lower())]
        assert len(listed) >= 4, page
        assert set(listed) <= known, page
