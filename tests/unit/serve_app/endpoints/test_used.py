"""When to come back to an endpoint whose queue is full."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from events.store.records import Endpoint
from serve_app.endpoints.used import UsedEndpoints, job_timeout_s, terms_of
from serve_app.services import Services
from settings.dispatch import DispatchSettings
from settings.graph import GraphSettings


def used(status: Mapping[str, Any] | None) -> UsedEndpoints:
    async def tell(_id: str) -> Mapping[str, Any] | None:
        return status

    async def no_row(_id: str) -> Endpoint | None:
        return None

    services = SimpleNamespace(
        endpoints=SimpleNamespace(get=no_row),
        endpoint_status=tell,
        dispatch_settings=DispatchSettings(),
    )
    return UsedEndpoints(cast("Services", services))


@pytest.mark.parametrize(
    ("status", "expected_s"),
    [
        (None, 5),
        ({"rate_per_s": None}, 60),
        ({"rate_per_s": 0.5}, 22),
        ({"rate_per_s": 1000.0}, 1),
        ({"rate_per_s": 0.001}, 300),
    ],
)
async def test_it_is_once_a_twentieth_of_the_queue_is_free(
    status: Mapping[str, Any] | None, expected_s: int
) -> None:
    """Of 200 places that and one more, by the speed that the dispatcher tells."""
    refusal = await used(status).queue_full(Endpoint("own", max_queued=200), 200)
    assert refusal.retry_after_s == expected_s


def test_no_job_lasts_longer_than_the_settings_say() -> None:
    settings = DispatchSettings(job_timeout_s=60)
    for own, expected in ((None, 60), (30.0, 30), (90.0, 60)):
        assert job_timeout_s(Endpoint("own", job_timeout_s=own), settings) == expected


def test_a_job_is_told_the_limits_of_its_endpoint_and_else_of_the_settings() -> None:
    settings = GraphSettings(max_cost=7)
    assert terms_of(Endpoint("own", max_steps=5), settings).max_cost == 7
    terms = terms_of(Endpoint("own", max_cost=0.0, max_attempts=2, queue_timeout_s=3.0), settings)
    assert (terms.max_cost, terms.max_attempts, terms.queue_timeout_s) == (0, 2, 3)
