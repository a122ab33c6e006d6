"""Ray's own autoscaler, version 2, follows the queue: nodes come with jobs and go after them.

Its nodes are processes of this machine, and their GPUs are numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.cluster.parts.local_cluster import LocalCluster
from tests.support.polling import eventually
from tests.support.service import diffusion

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

NODE_TYPES = {
    "gpu-small": {"resources": {"CPU": 1, "GPU": 1, "small": 1}, "max_workers": 2},
    "gpu-large": {"resources": {"CPU": 1, "GPU": 1, "large": 1}, "max_workers": 1},
}
_ALIKE = {"gpus": 1, "min_workers": 0, "jobs_per_worker": 1}
SMALL = {"id": "small", "max_workers": 2, "resources": {"small": 1}, **_ALIKE}
LARGE = {"id": "large", "max_workers": 1, "resources": {"large": 1}, **_ALIKE}
NOWHERE = {"id": "nowhere", "max_workers": 1, "resources": {"unobtainable": 1}, **_ALIKE}
SCOPES = [part for name in ("admin", "generate", "read", "cancel") for part in ("--scope", name)]
LONG = {"steps": 150, "width": 256, "height": 256}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(cluster: LocalCluster) -> AsyncIterator[httpx.AsyncClient]:
    """The service is up, with no node but the head."""
    cluster.settings |= {
        "DARKROOM_HTTP_REPLICAS": "1",
        "DARKROOM_WORKER_GPUS": "1",
        "DARKROOM_MIN_WORKERS": "0",
        "DARKROOM_STANDBY_ENGINE": "false",
        "DARKROOM_WORKER_IDLE_S": "3",
        "DARKROOM_WORKER_UNWANTED_S": "3",
    }
    cluster.start_autoscaling_head(NODE_TYPES)
    await cluster.head_is_up()
    await cluster.deploy()
    await eventually(cluster.is_ready)
    key, _ = cluster.darkroom("keys", "create", "ops", *SCOPES).split()
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=cluster.url, headers=headers, trust_env=False, timeout=30
    ) as client:
        for endpoint in (SMALL, LARGE, NOWHERE):
            made = await client.post("/v1/endpoints", json=endpoint)
            assert made.status_code == httpx.codes.CREATED, made.text
        yield client


async def submit(http: httpx.AsyncClient, endpoint: str, **changes: int) -> str:
    body = diffusion(**changes)
    answer = await http.post("/diffusion/v1/generate", json=body, params={"endpoint": endpoint})
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.json()["request_id"])


async def ended(http: httpx.AsyncClient, job_id: str) -> int:
    async def status() -> int:
        answer = await http.get("/diffusion/v1/result", params={"request_id": job_id})
        return int(answer.json().get("status") or 0)

    return await eventually(status)


def kinds(cluster: LocalCluster) -> list[str]:
    """The types of the nodes that the autoscaler has added and that are alive."""
    added = cluster.ray().node_resources()
    return sorted(kind for each in added for kind in ("small", "large") if kind in each)


def processes_of_a_node(cluster: LocalCluster, kind: str) -> list[psutil.Process]:
    """Of one node of this type, as far as they are of no other node."""
    raylet = next(
        each
        for each in cluster.processes.all()
        if each.name() == "raylet" and f"{kind},1" in " ".join(each.cmdline())
    )
    return [raylet, *raylet.children(recursive=True)]


def say(what: str, began: float) -> None:
    sys.stdout.write(f"\n{what}: {time.monotonic() - began:.1f} s\n")


async def test_nodes_of_each_kind_come_with_jobs_and_go_after_them(
    cluster: LocalCluster, http: httpx.AsyncClient
) -> None:
    assert kinds(cluster) == []
    began = time.monotonic()
    jobs = [await submit(http, "small", **LONG) for _ in range(4)]
    await eventually(lambda: kinds(cluster) == ["small", "small"])
    say("two nodes for four jobs", began)
    jobs.append(await submit(http, "large"))
    await eventually(lambda: kinds(cluster) == ["large", "small", "small"])

    await eventually(lambda: len(cluster.ray().pids(":engine")) == 3)
    for process in processes_of_a_node(cluster, "small"):
        process.kill()
    assert [await ended(http, job_id) for job_id in jobs] == [1] * len(jobs)
    say("all jobs, one node lost", began)

    began = time.monotonic()
    await eventually(lambda: kinds(cluster) == [])
    assert cluster.ray().placement_groups() == []
    say("no node left", began)


async def test_a_place_that_never_comes_is_given_back_with_its_job(
    cluster: LocalCluster, http: httpx.AsyncClient
) -> None:
    job_id = await submit(http, "nowhere")
    await eventually(lambda: len(cluster.ray().placement_groups()) == 1)
    assert (await http.post(f"/v1/jobs/{job_id}/cancel")).is_success
    await eventually(lambda: cluster.ray().placement_groups() == [])
    assert kinds(cluster) == []
