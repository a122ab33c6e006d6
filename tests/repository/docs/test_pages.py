"""The pages agree with the code: their tables, names and numbers are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.generate.events import event_types
from docs.generate.markers import GENERATORS, fill
from docs.generate.routes import openapi_document
from engine.admission import JOB_MEMORY_BYTES
from engine.graph.limits import Limits
from events.types import EVENT_TYPES
from serve_app.acceptance.compilation import MAX_METADATA_BYTES
from settings.graph import GraphSettings
from settings.settings import Settings
from tests.support.telemetry.known import known_metrics, shown_name

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PLACE = re.compile(r"{[^}]*}|<[^>]*>")


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def test_each_route_that_a_page_names_exists() -> None:
    routes = {
        (method.upper(), PLACE.sub("{}", path))
        for path, methods in openapi_document()["paths"].items()
        for method in methods
    }
    named = {
        (page.name, method, PLACE.sub("{}", path))
        for page in PAGES
        for method, path in re.findall(r"`(GET|POST|PATCH|PUT|DELETE) (/[^`?]*)", page.read_text())
    }
    assert {each for each in named if each[1:] not in routes} == set()


def test_the_page_of_events_has_every_type_and_field() -> None:
    _, section = text_of("docs/events.md").split("## When each one happens\n")
    rows = re.findall(r"^\| `(.+)` \| .+ \|$", section.split("\n## ")[0], re.MULTILINE)
    assert sorted(rows) == sorted(EVENT_TYPES)
    sections = {part.split("`")[1]: part for part in event_types().split("### ")[1:]}
    assert list(sections) == list(EVENT_TYPES)
    for name, event_type in EVENT_TYPES.items():
        for field in event_type.model_fields:
            assert f"| `{field}` |" in sections[name]


def test_the_page_of_settings_has_every_setting() -> None:
    page = fill(text_of("docs/settings.md"))
    assert GENERATORS["settings"]() in page
    for variable in Settings.variables():
        assert f"| `{variable}` |" in page


@pytest.mark.parametrize("name", GENERATORS)
def test_a_page_asks_for_each_generator(name: str) -> None:
    marker = f"\n<!-- generated: {name} -->\n"
    assert [page.name for page in PAGES if marker in page.read_text()] != []


async def test_the_page_of_metrics_has_every_metric_with_its_kind(tmp_path: Path) -> None:
    row = re.compile(r"^\| `(darkroom_\w+)` \|(.*?)\| (.*) \|$", re.MULTILINE)
    texts = {name: text for name, _, text in row.findall(text_of("docs/metrics.md"))}
    known = await known_metrics(tmp_path)
    assert sorted(texts) == sorted(map(shown_name, known))
    histograms = {each.name for each in known if each.type == "histogram"}
    assert {name for name, text in texts.items() if text.startswith("histogram")} == histograms


def test_the_security_page_names_tests_and_settings_that_exist() -> None:
    page = text_of("SECURITY.md")
    tests = re.findall(r"`(tests/[^`]+)`", page)
    assert len(tests) > 10
    assert [name for name in tests if not (ROOT / name).is_file()] == []
    variables = set(re.findall(r"DARKROOM_[A-Z_]+", page))
    assert variables
    assert variables <= Settings.variables()


def test_the_page_of_costs_has_the_default_of_each_other_limit_of_a_job() -> None:
    page, limits = text_of("docs/costs.md"), Limits()
    assert limits.max_live_bytes == JOB_MEMORY_BYTES
    for shown in (
        f"| {limits.max_nodes:,} and {limits.max_batch} |",
        f"| {limits.max_text_chars:,} and {limits.max_request_chars:,} |",
        f"| {GraphSettings().max_side_px:,} pixels (`DARKROOM_MAX_SIDE_PX`) |",
        f"| {limits.max_pixels:,} and {limits.max_steps:,} (`max_pixels`",
        f"from a model | {limits.max_merged_models} |",
        f"together | {MAX_METADATA_BYTES // 2**20} MiB |",
        f"of {GraphSettings().max_cost:,.0f} megapixel-steps",
    ):
        assert shown in page
