"""The page of costs has the numbers of the code."""

from __future__ import annotations

import re
from pathlib import Path

from engine.graph import work
from settings.graph import GraphSettings

PAGE = (Path(__file__).parents[3] / "docs" / "costs.md").read_text()


def cells(of: str) -> list[float]:
    """The numbers in the last column of the table with that head."""
    table = PAGE.split(of)[1].split("\n\n")[0]
    return [float(number) for number in re.findall(r"\| ([\d.]+) \|$", table, re.MULTILINE)]


def test_it_has_what_work_is_worth() -> None:
    named = [
        work.CONTROL,
        work.DECODE,
        work.ENCODE,
        work.UPSCALE,
        work.VISION,
        work.CHUNK,
        work.LOAD,
        work.LOAD_PART,
        100_000 * work.SIGMA,
        work.RESAMPLE,
        work.COPY,
        work.FILE,
    ]
    assert cells("| work | megapixel-steps |") == named


def test_it_has_the_default_of_each_limit() -> None:
    settings = GraphSettings()
    for variable, shown in (
        ("MAX_COST", f"{settings.max_cost:,.0f}"),
        ("MAX_LIVE_BYTES", f"{settings.max_live_bytes // 2**30} GiB"),
        ("MAX_CONDITIONING_ROWS", f"{settings.max_conditioning_rows:,}"),
        ("MAX_TOKENS", f"{settings.max_tokens:,}"),
        ("MAX_OUTPUTS", f"{settings.max_outputs:,}"),
    ):
        assert f"| `DARKROOM_{variable}` | {shown} |" in PAGE
