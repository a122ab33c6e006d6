from __future__ import annotations

from datetime import timedelta

import pytest

from events.job_cost import Timing
from events.types import Completed, EventData, Failed, Started
from serve_app.routes.server_timing import server_timing
from tests.support.events import folded, submitted

STARTED = Started(attempt=1, actor="a")
TIMING = Timing(stage_s={"text": 0.02, "denoise": 0.75, "store": 0.0304}, rows_per_call=6.4)


def test_a_completed_job_says_where_its_time_went() -> None:
    job = folded([submitted(), STARTED, Completed(images=0, timing=TIMING)])
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.ended_at - job.submitted_at == timedelta(seconds=2)
    assert server_timing(job) == {
        "Server-Timing": "queue;dur=1000.0, text;dur=20.0, denoise;dur=750.0, store;dur=30.4,"
        ' total;dur=2000.0, batch;desc="6.4 rows a call"'
    }


def test_a_job_without_a_call_of_the_model_has_no_batch() -> None:
    timing = Timing(stage_s={"vae": 0.1, "store": 0.01})
    header = server_timing(folded([submitted(), STARTED, Completed(images=0, timing=timing)]))
    assert "batch" not in header["Server-Timing"]


@pytest.mark.parametrize(
    "rest", [[], [STARTED], [STARTED, Completed(images=0)], [STARTED, Failed(message="No.")]]
)
def test_of_other_jobs_nothing_is_said(rest: list[EventData]) -> None:
    assert server_timing(folded([submitted(), *rest])) == {}
