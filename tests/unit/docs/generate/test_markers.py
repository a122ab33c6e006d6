from __future__ import annotations

from pathlib import Path

import pytest

from docs.generate.markers import GENERATORS, fill
from settings.__main__ import markdown
from settings.settings import Settings

PAGES = Path(__file__).resolve().parents[4] / "docs"


def test_a_marker_is_replaced_by_what_its_generator_writes() -> None:
    page = fill("before\n\n<!-- generated: settings -->\n\nafter")
    assert page == f"before\n\n{GENERATORS['settings']()}\n\nafter"


def test_an_unknown_marker_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        fill("<!-- generated: nothing -->")


@pytest.mark.parametrize("name", GENERATORS)
def test_each_generator_is_asked_for_by_one_page(name: str) -> None:
    marker = f"\n<!-- generated: {name} -->\n"
    assert [page.name for page in PAGES.glob("*.md") if marker in page.read_text()] != []


def test_the_page_of_settings_shows_every_setting_with_its_default() -> None:
    page = fill((PAGES / "settings.md").read_text())
    assert markdown() in page
    for variable in Settings.variables():
        assert f"| `{variable}` |" in page
