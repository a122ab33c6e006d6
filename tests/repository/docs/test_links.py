from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.links import DOCS, LINK, NotOnTheSite, relink

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("docs/events.md", "[a](settings.md)", "[a](settings.md)"),
        ("README.md", "[a](docs/events.md)", "[a](events.md)"),
        ("docs/events.md", "[a](../README.md)", "[a](index.md)"),
        ("docs/events.md", "[a](../SECURITY.md#report)", "[a](security.md#report)"),
        ("docs/adr/README.md", "[a](../../ARCHITECTURE.md)", "[a](../architecture.md)"),
        ("ARCHITECTURE.md", "[a](docs/adr/0001-x.md)", "[a](adr/0001-x.md)"),
        ("ARCHITECTURE.md", "[a](SECURITY.md) and [b](#rules)", "[a](security.md) and [b](#rules)"),
        ("docs/models.md", "[a](../deploy/ray-cluster.yaml)", "[a](deploy/ray-cluster.yaml)"),
        (
            "models/checkpoints/darkroom-shapes.md",
            "![a](../../docs/images/x.png)",
            "![a](../../images/x.png)",
        ),
        ("docs/models.md", "[a](https://example.com/x.md)", "[a](https://example.com/x.md)"),
    ],
)
def test_links_lead_to_the_site(source: str, link: str, expected: str) -> None:
    assert relink(link, source) == expected


def test_a_link_to_a_file_that_the_site_lacks_is_an_error() -> None:
    with pytest.raises(NotOnTheSite, match=r"engine/engine\.py"):
        relink("[a](../engine/engine.py)", "docs/models.md")


def test_links_in_the_repository_lead_to_files() -> None:
    """What the site's own check cannot see: the pages as they are read in the repository."""
    pages = [*ROOT.glob("*.md"), *(ROOT / DOCS).rglob("*.md")]
    broken = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in pages
        for path in (match["path"] for match in LINK.finditer(page.read_text()))
        if not (page.parent / path).exists()
    ]
    assert broken == []
