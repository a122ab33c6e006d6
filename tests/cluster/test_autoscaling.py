"""Ray's own autoscaler, version 2, follows the queue: nodes come with jobs and go after them.

Its nodes are processes of this machine, and their GPUs are numbers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.cluster.parts.aftermath import Story
from tests.cluster.parts.local_cluster import LocalCluster
from tests.cluster.parts.ray_node import kill_all_with
from tests.support.polling import eventually
from tests.support.service import diffusion
from tests.support.subscriber import stored_events

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

NODE_TYPES = {
    "gpu-small": {"resources": {"CPU": 1, "GPU": 1, "small": 1}, "max_workers": 2},
    "gpu-large": {"resources": {"CPU": 1, "GPU": 1, "large": 1}, "max_workers": 1},
}
_ALIKE = {"gpus": 1, "min_workers": 0, "jobs_per_worker": 1}
ENDPOINTS = (
    {"id": "small", "max_workers": 2, "resources": {"small": 1}, **_ALIKE},
    {"id": "large", "max_workers": 1, "resources": {"large": 1}, **_ALIKE},
    {"id": "nowhere", "max_workers": 2, "resources": {"unobtainable": 1}, **_ALIKE},
)
SCOPES = [part for name in ("admin", "generate", "read", "cancel") for part in ("--scope", name)]
LONG = {"steps": 60, "width": 256, "height": 256}
ENDS = ("completed", "failed", "cancelled")
_NODE_ID = "RAY_OVERRIDE_NODE_ID_FOR_TESTING"
"""Ray's provider of such nodes tells each of them by it who it is."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(cluster: LocalCluster) -> AsyncIterator[httpx.AsyncClient]:
    """The service is up, with no node but the head."""
    cluster.settings |= {
        "DARKROOM_HTTP_REPLICAS": "1",
        "DARKROOM_WORKER_GPUS": "1",
        "DARKROOM_MIN_WORKERS": "0",
        "DARKROOM_WORKERS_KEPT_S": "5",
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
        for endpoint in ENDPOINTS:
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


async def ended_once_and_unblamed(cluster: LocalCluster, job_id: str) -> bool:
    events = await stored_events(cluster.nats.nodes[0].url, job_id)
    ends = [each for each in events if each["type"].split(".")[-2] in ENDS]
    failures = [each for each in events if "attempt_failed" in each["type"]]
    return len(ends) == 1 and all(each["data"].get("blame") for each in failures)


def kinds(cluster: LocalCluster) -> list[str]:
    """The types of the nodes that the autoscaler has added and that are alive."""
    added = cluster.ray().node_resources()
    return sorted(kind for each in added for kind in ("small", "large") if kind in each)


def kill_node(cluster: LocalCluster, kind: str) -> None:
    """One node of this type, with all that runs on it."""
    raylet = next(
        each
        for each in cluster.processes.all()
        if each.name() == "raylet" and f"{kind},1" in " ".join(each.cmdline())
    )
    kill_all_with(_NODE_ID, psutil.Process(raylet.pid).environ()[_NODE_ID])


async def test_nodes_of_each_kind_come_with_jobs_and_go_after_them(
    cluster: LocalCluster, http: httpx.AsyncClient
) -> None:
    story = Story("0 -> 3 -> 0 nodes of two kinds, one lost meanwhile")
    assert kinds(cluster) == []
    jobs = [await submit(http, "small", **LONG) for _ in range(3)]
    await eventually(lambda: kinds(cluster) == ["small", "small"])
    story.say("two nodes for three jobs")
    jobs.append(await submit(http, "large"))
    await eventually(lambda: kinds(cluster) == ["large", "small", "small"])
    story.say("one of another kind for the job of another endpoint")
    await eventually(lambda: len(cluster.ray().pids(":small:")) >= 2)
    kill_node(cluster, "small")
    story.say("one node killed")
    assert [await ended(http, job_id) for job_id in jobs] == [1] * len(jobs)
    story.say("all jobs have ended")
    assert all([await ended_once_and_unblamed(cluster, job_id) for job_id in jobs])
    await eventually(lambda: kinds(cluster) == [])
    assert cluster.ray().placement_groups() == []
    story.say("no node is left")
    sys.stdout.write(f"\n{story}\n")


async def test_places_that_never_come_are_as_many_as_may_be_and_go_with_their_jobs(
    cluster: LocalCluster, http: httpx.AsyncClient
) -> None:
    story = Story("three jobs, and two workers that have no place anywhere")
    seen: list[int] = []

    def places() -> int:
        seen.append(len(cluster.ray().placement_groups()))
        return seen[-1]

    jobs = [await submit(http, "nowhere") for _ in range(3)]
    await eventually(lambda: places() == 2)
    story.say("two places are asked for")
    for job_id, left in zip(jobs, (2, 1, 0), strict=True):
        assert (await http.post(f"/v1/jobs/{job_id}/cancel")).is_success
        await eventually(lambda left=left: places() == left)
        story.say(f"{left} jobs wait, for {left} places")
    assert max(seen) == 2
    assert kinds(cluster) == []
    sys.stdout.write(f"\n{story}\n")


async def test_a_shutdown_gives_every_node_back(
    cluster: LocalCluster, http: httpx.AsyncClient
) -> None:
    story = Story("serve shutdown, while one worker runs a job and one waits for its place")
    running, _waiting = await submit(http, "small", **LONG), await submit(http, "nowhere")
    await eventually(lambda: len(cluster.ray().placement_groups()) == 2)

    async def is_running() -> bool:
        return bool((await http.get(f"/v1/jobs/{running}")).json()["state"] == "running")

    await eventually(is_running)
    await asyncio.to_thread(cluster.serve, "shutdown", "--yes", "--address", cluster.dashboard)
    story.say("serve shutdown has returned")
    await eventually(lambda: len(cluster.ray().placement_groups()) <= 1)
    story.say("the place that never came is given back")
    await cluster.is_empty()
    story.say("no worker and no actor is left")
    await eventually(lambda: kinds(cluster) == [])
    story.say("no node is left")
    sys.stdout.write(f"\n{story}\n")
