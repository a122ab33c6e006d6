from __future__ import annotations

from typing import Any

import pytest

from docs.generate.routes import http_routes, openapi_document


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi_document()


@pytest.fixture(scope="module")
def page() -> str:
    return http_routes()


def test_every_route_is_on_the_page(document: dict[str, Any], page: str) -> None:
    for path, methods in document["paths"].items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in page


def test_every_schema_has_a_heading_that_links_lead_to(document: dict[str, Any], page: str) -> None:
    for name in document["components"]["schemas"]:
        assert f"\n### {name}\n" in page


def test_every_status_of_an_error_is_explained(document: dict[str, Any], page: str) -> None:
    explained = page.partition("## Errors")[2]
    for methods in document["paths"].values():
        for operation in methods.values():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert f"| {status} | {answer['description']} |" in explained


def test_a_handler_at_two_paths_is_described_once(page: str) -> None:
    assert page.count("### `POST /workflow/v1/generate`") == 1
    assert "Also at `POST /api/v1/workflow/generate`." in page


def test_parameters_bodies_and_examples_are_shown(page: str) -> None:
    assert '| `endpoint` | query | string | `"default"` |' in page
    assert "| `steps` | integer, ≥ 1, ≤ 150 | `50` |" in page
    assert '"class_type": "CheckpointLoaderSimple"' in page


def test_open_routes_say_that_they_need_no_key(page: str) -> None:
    sections = {part.split("`")[1]: part for part in page.split("### ") if part.startswith("`")}
    open_routes = {name for name, part in sections.items() if "Needs no API key." in part}
    assert open_routes == {
        "GET /files/{request_id}/{name}",
        "GET /health/live",
        "GET /health/ready",
    }
