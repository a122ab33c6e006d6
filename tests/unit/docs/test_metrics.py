"""The page about metrics."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.telemetry.known import known_metrics, shown_name

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
ROW = re.compile(r"^\| `(darkroom_\w+)` \|(.*?)\| (.*) \|$", re.MULTILINE)


async def test_it_lists_every_metric_and_no_other(tmp_path: Path) -> None:
    listed = [name for name, _, _ in ROW.findall(PAGE.read_text())]
    known = [shown_name(metric) for metric in await known_metrics(tmp_path)]
    assert sorted(listed) == sorted(known)


async def test_it_calls_each_histogram_one(tmp_path: Path) -> None:
    texts = {name: text for name, _, text in ROW.findall(PAGE.read_text())}
    histograms = {each.name for each in await known_metrics(tmp_path) if each.type == "histogram"}
    assert {name for name, text in texts.items() if text.startswith("histogram")} == histograms
