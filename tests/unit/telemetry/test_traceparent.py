"""Headers by which a caller names a trace that is none, or nothing at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.edge import running_edge
from tests.support.generate_bodies import diffusion_body
from tests.support.telemetry.traces import SAMPLED

WRONG = {
    "long": SAMPLED + "0" * 4000,
    "two": f"{SAMPLED}, {SAMPLED}",
    "upper case": SAMPLED.upper(),
    "version": f"ff{SAMPLED[2:]}",
    "other digits": "-".join(["00", "٣" * 32, "1" * 16, "01"]),
    "no digits": "'; drop table jobs; --",
}


@pytest.mark.parametrize("sent", WRONG.values(), ids=WRONG)
async def test_a_trace_that_is_none_harms_nothing(tmp_path: Path, sent: str) -> None:
    headers = [(b"traceparent", sent.encode()), (b"tracestate", b"a=" + b"b" * 20_000)]
    headers += [(b"tracestate", b",=;\xff")] * 50
    async with running_edge(tmp_path) as edge, await edge.client() as client:
        answer = await client.post("/diffusion/v1/generate", json=diffusion_body(), headers=headers)
        assert answer.status_code == 202
        assert (await edge.job(answer.json()["request_id"])).traceparent is None
