"""The page of metrics of a running service: every process, and what each act moves."""

from __future__ import annotations

import time

import pytest

from examples.receiver import Receiver
from tests.support.service import Service, diffusion
from tests.support.telemetry.samples import Samples

pytestmark = pytest.mark.timeout(1200)

ROLES = ("api", "router", "projection", "dispatcher", "callbacks")
ENDPOINT = {"endpoint": "default"}
DONE = ENDPOINT | {"flavour": "diffusion", "status": "completed"}
LONGEST_S = 60.0


def page(service: Service, key: str) -> str:
    answer = service.http.get("/metrics", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    return answer.text


def page_with(service: Service, key: str, **least: float) -> tuple[str, Samples]:
    """Once it has a sample of each of these names, of this value at least."""
    give_up_at = time.monotonic() + LONGEST_S
    labels = {"jobs_ended_total": DONE, "models_loaded_total": ENDPOINT}
    labels["callback_tries_total"] = {"outcome": "taken"}
    while True:
        text = page(service, key)
        samples = Samples.of_page(text)
        found = {name: samples(name, **labels[name]) for name in least}
        if all((found[name] or 0) >= value for name, value in least.items()):
            return text, samples
        assert time.monotonic() < give_up_at, found
        time.sleep(0.5)


def test_one_address_has_the_metrics_of_every_process(service: Service, receiver: Receiver) -> None:
    key = service.command("keys", "create", "prometheus", "--scope", "metrics").stdout.split()[0]
    before = Samples.of_page(page(service, key))
    job_id = service.submit("diffusion", diffusion(), callback_url=receiver.url)
    assert service.http.get("/v1/jobs/no-such-job").status_code == 404
    service.ended(job_id)
    text, samples = page_with(
        service,
        key,
        jobs_ended_total=(before("jobs_ended_total", **DONE) or 0) + 1,
        callback_tries_total=(before("callback_tries_total", outcome="taken") or 0) + 1,
        models_loaded_total=1,
    )
    assert {role for role in ROLES if f'role="{role}"' in text} == set(ROLES)
    for stage in ("text", "denoise", "vae", "store"):
        assert (samples("job_stage_seconds_count", **ENDPOINT, stage=stage) or 0) >= 1
    assert (samples("job_rows_per_call_count", **ENDPOINT) or 0) >= 1
    assert (samples("models_bytes", **ENDPOINT) or 0) > 2**20
    assert (samples("engine_resident_memory_bytes", **ENDPOINT) or 0) > 2**20
    assert samples("workers", **ENDPOINT, state="ready") == 1
    assert samples("queue_jobs", **ENDPOINT) is not None
    assert (samples("requests_refused_total", reason="not_found") or 0) >= 1
    assert 0 < (samples("log_fill_ratio") or 0) < 1
    assert samples("projection_lag_events") is not None
    # Tests before this one call receivers that are down.
    assert samples("callback_breakers_open") is not None
