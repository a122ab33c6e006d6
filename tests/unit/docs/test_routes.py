"""The pages name routes that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.routes import openapi_document

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
NAMED = re.compile(r"`(GET|POST|PATCH|PUT|DELETE) (/[^`?]*)")
PLACE = re.compile(r"{[^}]*}|<[^>]*>")


def route(method: str, path: str) -> tuple[str, str]:
    return method, PLACE.sub("{}", path)


@pytest.fixture(scope="module")
def routes() -> set[tuple[str, str]]:
    paths = openapi_document()["paths"].items()
    return {route(method.upper(), path) for path, methods in paths for method in methods}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_route_that_it_names_is_there(page: Path, routes: set[tuple[str, str]]) -> None:
    assert {route(*found) for found in NAMED.findall(page.read_text())} <= routes
