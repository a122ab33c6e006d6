"""SECURITY.md names tests that are there, and the defaults of the code."""

from __future__ import annotations

import re
from pathlib import Path

from engine.graph.limits import Limits
from settings.engine import EngineSettings
from settings.graph import GraphSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_each_test_that_it_names_is_there() -> None:
    named = re.findall(r"`(tests/[^`]+)`", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_it_has_the_default_of_each_limit_of_a_job() -> None:
    graph, engine = GraphSettings(), EngineSettings()
    for shown in (
        f"| {graph.max_cost:,.0f} megapixel-steps,",
        f"| `DARKROOM_MAX_LIVE_BYTES` | {graph.max_live_bytes // 2**30} GiB |",
        f"| {graph.max_conditioning_rows} rows, {graph.max_tokens:,} tokens |",
        f"| {Limits().max_pixels:,} pixels in a batch |",
        f"| `DARKROOM_MAX_OUTPUTS` | {graph.max_outputs} |",
        f"| `DARKROOM_MAX_METADATA_BYTES` | {graph.max_metadata_bytes // 2**20} MiB |",
        f"| `DARKROOM_JOB_MEMORY_BYTES` | {engine.job_memory_bytes // 2**30} GiB |",
    ):
        assert shown in PAGE
