"""The dashboard: queries that Prometheus takes, of metrics that there are, in the right units."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.deploy.manifests import DEPLOY
from tests.support.deploy.promtool import promtool, written
from tests.support.telemetry.known import known_metrics, sample_names

BOARD: dict[str, Any] = json.loads((DEPLOY / "monitoring/dashboard.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
METRIC = re.compile(r"\bdarkroom_\w+")
WHOLE_ROW = 24
UNITS = {"_seconds": "s", "_bytes": "bytes", "_ratio": "percentunit"}


def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    filled = [each.replace("$__rate_interval", "1m").replace("$endpoint", ".*") for each in QUERIES]
    rules = [{"record": f"panel:{n}", "expr": query} for n, query in enumerate(filled)]
    groups = {"groups": [{"name": "dashboard", "rules": rules}]}
    promtool("check", "rules", written(tmp_path / "rules.yaml", groups))


async def test_every_metric_is_one_that_there_is_and_is_shown(tmp_path: Path) -> None:
    known = await known_metrics(tmp_path)
    used = {name for query in QUERIES for name in METRIC.findall(query)}
    assert used - sample_names(known) == set()
    unseen = {each.name for each in known if not sample_names([each]) & used}
    assert unseen == {
        "darkroom_images_stored",  # their bytes are
        "darkroom_models_evicted_bytes",  # their numbers are
        "darkroom_models_loaded_bytes",
        "darkroom_projection_lag_events",  # their age is
    }


def test_panels_have_ids_and_places_of_their_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= WHOLE_ROW
        columns, rows = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        cells = {(x, y) for x in columns for y in rows}
        assert cells.isdisjoint(taken)
        taken |= cells


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_its_unit(panel: dict[str, Any]) -> None:
    assert panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        name = METRIC.findall(target["expr"] + " darkroom_none")[0]
        for suffix, unit in UNITS.items():
            if name.endswith(suffix):
                assert panel["fieldConfig"]["defaults"]["unit"] == unit
