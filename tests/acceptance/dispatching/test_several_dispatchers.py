"""The whole service with two dispatchers and two endpoints; one of the dispatchers is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.polling import eventually
from tests.support.service import Service, diffusion

T = TypeVar("T")

pytestmark = pytest.mark.timeout(1200)

ENDPOINTS = ("default", "portraits")
PATIENCE_S = 400.0
"""A start of an engine takes long on a busy machine."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path / "data", DARKROOM_DISPATCHERS="2")
    try:
        service.start()
        yield service
    finally:
        service.close()


def until(check: Callable[[], T | None]) -> T:
    answer = asyncio.run(eventually(check, within_s=PATIENCE_S))
    assert answer is not None
    return answer


def submit(service: Service, count: int, *, first_seed: int) -> list[str]:
    """So many to each endpoint."""
    return [
        service.submit("diffusion", diffusion(seed=seed), endpoint=endpoint)
        for seed in range(first_seed, first_seed + count)
        for endpoint in ENDPOINTS
    ]


def divided(service: Service, key: str) -> dict[str, str] | None:
    """The process that says how much waits on each endpoint, once it is another one for each."""
    answer = service.http.get("/metrics", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text
    found: dict[str, list[str]] = {endpoint: [] for endpoint in ENDPOINTS}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == "darkroom_queue_jobs":
                found[sample.labels["endpoint"]].append(sample.labels["process"])
    processes = {endpoint: said[0] for endpoint, said in found.items() if len(said) == 1}
    return processes if len(set(processes.values())) == len(ENDPOINTS) else None


def are_well(service: Service) -> bool:
    """Both endpoints are told of, by HTTP and by the doctor."""
    shown = [service.http.get(f"/v1/endpoints/{each}").json() for each in ENDPOINTS]
    doctor = service.command("doctor", check=False)
    is_healthy = "Each is dispatched" in doctor.stdout + doctor.stderr
    return is_healthy and all(each.get("workers") for each in shown)


def ran_once(service: Service, jobs: list[str]) -> None:
    for job_id in jobs:
        assert service.ended(job_id)["status"] == 1
        assert service.event_names(job_id).count("started") == 1


def test_endpoints_are_divided_and_those_of_one_that_is_killed_go_on(two: Service) -> None:
    key = two.command("keys", "create", "prometheus", "--scope", "metrics").stdout.split()[0]
    members = ("gpus=0", "cpus=0.5", "min_workers=1", "jobs_per_worker=1")
    two.command("endpoints", "create", "portraits", *members)
    ran_once(two, submit(two, 2, first_seed=0))
    until(lambda: are_well(two))
    killed = until(lambda: divided(two, key))["portraits"]
    jobs = submit(two, 3, first_seed=10)
    os.kill(int(killed.rpartition(":")[2]), signal.SIGKILL)
    jobs += submit(two, 3, first_seed=20)
    ran_once(two, jobs)
    assert killed not in until(lambda: divided(two, key)).values()
    ran_once(two, submit(two, 1, first_seed=30))
    assert two.disagreements() == ""
