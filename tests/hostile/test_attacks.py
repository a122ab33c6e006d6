"""No request of one caller stops or slows the service for another, or exhausts its memory."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from tests.hostile import forms, graphs, reads, streams, texts, uploads
from tests.hostile.attack import Attack
from tests.hostile.watch import Watch
from tests.support.patience import FACTOR
from tests.support.service import diffusion

pytestmark = pytest.mark.timeout(300)

ANSWERS = {200, 201, 202, 400, 404, 410, 413, 415, 422, 429}
"""200 and 201 are for uploads that are valid pictures, 404 for a query that names nothing, 410 for
a position that the log does not have, 415 for a body that is not JSON.
"""
ANSWER_S = 3.0
ANSWER_BYTES = 1_000_000
LIVE_S = 0.5 * FACTOR
NEIGHBOUR_S = 60.0 * FACTOR
END_S = 120.0 * FACTOR
ENGINE_BYTES = 4 * 1024**3
TRIES = 3
"""An attack slows each attempt, but other work of the machine does not."""

LIST_BYTES = 5_000_000

ATTACKS = (
    *graphs.ATTACKS,
    *forms.ATTACKS,
    *texts.ATTACKS,
    *uploads.ATTACKS,
    *streams.ATTACKS,
    *reads.ATTACKS,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_an_attack_is_answered_and_harms_no_neighbour(
    attack: Attack, watch: Watch, attacker: httpx.Client, neighbour: httpx.Client
) -> None:
    for _ in range(TRIES):
        watch.begin()
        began = time.monotonic()
        answer = _send(attacker, attack)
        answered_s = time.monotonic() - began
        neighbours = _end_of(neighbour, _small_job(neighbour), within_s=NEIGHBOUR_S)

        assert answer.status_code in ANSWERS, answer.text[:500]
        assert len(answer.content) < (LIST_BYTES if attack in reads.ATTACKS else ANSWER_BYTES)
        assert neighbours["status"] == 1, neighbours
        if answer.status_code == httpx.codes.ACCEPTED:
            _end_of(attacker, answer.headers["location"], within_s=END_S)
        assert watch.engine_bytes < ENGINE_BYTES
        long_ticks = watch.long_ticks()
        if answered_s < ANSWER_S and watch.longest_s < LIVE_S and not long_ticks:
            break
    assert answered_s < ANSWER_S
    assert watch.longest_s < LIVE_S
    assert not long_ticks


def _send(http: httpx.Client, attack: Attack) -> httpx.Response:
    headers = {"content-type": "application/json", **attack.headers}
    return http.request(
        attack.method, attack.path, content=attack.content, params=attack.params, headers=headers
    )


def _small_job(http: httpx.Client) -> str:
    answer = http.post("/diffusion/v1/generate", json=diffusion(steps=2))
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.headers["location"])


def _end_of(http: httpx.Client, location: str, *, within_s: float) -> dict[str, Any]:
    """The result at its end. Fails if the job has none by then."""
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        wait_s = max(1, min(20, int(give_up_at - time.monotonic())))
        result: dict[str, Any] = http.get(f"{location}&wait={wait_s}").json()
        if result["status"]:
            return result
    raise AssertionError(f"not ended within {within_s:g} s: {result}")
