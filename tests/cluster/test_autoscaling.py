"""Ray's autoscaler adds nodes of the right type for jobs and removes them afterwards.

There are two types of nodes and three endpoints: one for each type, and one for a resource that no
node has. The head has HTTP and roles; workers are on nodes that the autoscaler adds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.cluster.parts.autoscaling import (
    ENVIRONMENT,
    ENVIRONMENT_OF_ALL,
    Scale,
    autoscaling_config,
    lose_node_of,
)
from tests.cluster.parts.local_cluster import LocalCluster
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
    # One worker more than the cluster has nodes for.
    {"id": "small", "max_workers": 3, "resources": {"small": 1}, **_ALIKE},
    {"id": "large", "max_workers": 1, "resources": {"large": 1}, **_ALIKE},
    {"id": "nowhere", "max_workers": 2, "resources": {"unobtainable": 1}, **_ALIKE},
)
SCOPES = [part for name in ("admin", "generate", "read", "cancel") for part in ("--scope", name)]
NO_ROOM = "the cluster has no room for a worker"
LONG = {"steps": 150, "width": 256, "height": 256}
"""A job that runs for many seconds."""
ENDS = ("completed", "failed", "cancelled")


@pytest.fixture(scope="module")
def scale(cluster: LocalCluster) -> Scale:
    return Scale(cluster, ("small", "large"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(cluster: LocalCluster) -> AsyncIterator[httpx.AsyncClient]:
    """The service with its endpoints and no node except the head."""
    cluster.settings |= {
        "DARKROOM_HTTP_REPLICAS": "1",
        "DARKROOM_WORKER_GPUS": "1",
        "DARKROOM_MIN_WORKERS": "0",
        "DARKROOM_TEST_JOBS_PER_ACTOR": "50",  # a GPU is a number here
        "DARKROOM_WORKERS_KEPT_S": "5",
        "DARKROOM_WORKER_IDLE_S": "3",
        "DARKROOM_TEST_WORKER_UNWANTED_S": "1",
    }
    cluster.environment |= ENVIRONMENT_OF_ALL
    cluster.start_autoscaling_head(autoscaling_config(cluster.gcs, NODE_TYPES), ENVIRONMENT)
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


@asynccontextmanager
async def submitted(
    http: httpx.AsyncClient, endpoint: str, count: int, **changes: int
) -> AsyncGenerator[list[str]]:
    """Submit this many jobs and yield their ids; none remains for the next test."""
    job_ids = [await submit(http, endpoint, **changes) for _ in range(count)]
    try:
        yield job_ids
    finally:
        for job_id in job_ids:
            await http.post(f"/v1/jobs/{job_id}/cancel")


async def in_state(http: httpx.AsyncClient, endpoint: str, state: str) -> list[str]:
    """Return the ids of this endpoint's jobs in this state."""
    answer = await http.get("/v1/jobs", params={"endpoint": endpoint})
    return [each["request_id"] for each in answer.json()["jobs"] if each["state"] == state]


async def troubles(http: httpx.AsyncClient, endpoint: str) -> list[str | None]:
    """Return the reason why each of its workers is not ready."""
    shown = (await http.get(f"/v1/endpoints/{endpoint}")).json()
    return [worker.get("trouble") for worker in shown.get("workers") or ()]


async def ended(http: httpx.AsyncClient, job_id: str) -> int:
    """Wait for the end of a job and return the status in its result."""

    async def status() -> int:
        answer = await http.get("/diffusion/v1/result", params={"request_id": job_id})
        return int(answer.json().get("status") or 0)

    return await eventually(status)


async def cancel(http: httpx.AsyncClient, job_id: str) -> None:
    assert (await http.post(f"/v1/jobs/{job_id}/cancel")).json() == {"cancelled": True}


async def events(cluster: LocalCluster, job_id: str, *kinds: str) -> list[dict[str, Any]]:
    """Return the job's events of these kinds from the log."""
    stored = await stored_events(cluster.nats.nodes[0].url, job_id)
    return [each for each in stored if each["type"].split(".")[-2] in kinds]


async def ends(cluster: LocalCluster, job_id: str) -> list[str]:
    return [each["type"].split(".")[-2] for each in await events(cluster, job_id, *ENDS)]


async def nothing_is_left(cluster: LocalCluster, scale: Scale) -> None:
    """Wait until neither Darkroom nor Ray's autoscaler has a node or waits for one."""
    await eventually(scale.is_nothing)

    async def is_said() -> bool:
        status = await asyncio.to_thread(cluster.ray_status)
        pending = status.partition("Pending:")[2].split()
        return pending[:2] == ["(no", "pending"] and "(no resource demands)" in status

    await eventually(is_said)


async def test_nodes_of_each_type_come_with_jobs_and_go_after_them(
    cluster: LocalCluster, http: httpx.AsyncClient, scale: Scale
) -> None:
    assert scale.is_nothing()
    async with scale.watched():
        large = await submit(http, "large")
        await eventually(lambda: scale.most_nodes == {"large": 1})
        async with submitted(http, "small", 4, **LONG) as small:
            await eventually(lambda: scale.most_nodes["small"] == 2)
            runs = await has_room_for_two(http, scale, small)
            await loses_a_node_and_gets_another(cluster, scale, runs[0])
            assert [await ended(http, job_id) for job_id in (large, *runs)] == [1, 1, 1]
        await nothing_is_left(cluster, scale)
    assert scale.most_groups == {"large": 1, "small": 3}
    assert scale.most_nodes == {"large": 1, "small": 2}
    (failed,) = await events(cluster, runs[0], "attempt_failed")
    assert failed["data"]["blame"] == "bystander"
    assert [await ends(cluster, job_id) for job_id in (large, *runs)] == [["completed"]] * 3
    for job_id in set(small) - set(runs):
        assert await ends(cluster, job_id) == ["cancelled"]


async def has_room_for_two(http: httpx.AsyncClient, scale: Scale, job_ids: list[str]) -> list[str]:
    """Return the two running jobs. The others are cancelled, so that no third node is requested."""
    await eventually(lambda: has_one_without_room(http))
    runs = await eventually(lambda: two_run(http))
    for job_id in set(job_ids) - set(runs):
        await cancel(http, job_id)
    await eventually(lambda: scale.groups()["small"] == 2)
    assert await two_run(http) == runs
    return runs


async def loses_a_node_and_gets_another(cluster: LocalCluster, scale: Scale, job_id: str) -> None:
    """Kill the node that runs this job, which is one of two."""
    await lose_node_of(cluster, await worker_of(cluster, job_id))
    await eventually(lambda: scale.nodes()["small"] == 1)
    await eventually(lambda: scale.nodes()["small"] == 2)


async def two_run(http: httpx.AsyncClient) -> list[str]:
    """Return the two running jobs of the endpoint small."""
    runs = await in_state(http, "small", "running")
    return runs if len(runs) == 2 else []


async def has_one_without_room(http: httpx.AsyncClient) -> bool:
    return sorted(await troubles(http, "small"), key=str) == [None, None, NO_ROOM]


async def worker_of(cluster: LocalCluster, job_id: str) -> str:
    """Return the worker of a job."""
    *_, started = await events(cluster, job_id, "started")
    return str(started["data"]["actor"]).partition(":job:")[0]


async def test_places_that_never_come_are_as_many_as_may_be_and_go_with_their_jobs(
    cluster: LocalCluster, http: httpx.AsyncClient, scale: Scale
) -> None:
    async with scale.watched(), submitted(http, "nowhere", 3) as jobs:
        await eventually(lambda: scale.groups() == {"nowhere": 2})
        await eventually(lambda: have_no_room(http))
        assert "unobtainable" in await asyncio.to_thread(cluster.ray_status)
        for job_id, left in zip(jobs, (2, 1, 0), strict=True):
            await cancel(http, job_id)
            await eventually(lambda left=left: scale.groups()["nowhere"] == left)
        await nothing_is_left(cluster, scale)
    assert scale.most_groups == {"nowhere": 2}
    assert scale.most_nodes == {}
    assert [await ends(cluster, job_id) for job_id in jobs] == [["cancelled"]] * 3


async def have_no_room(http: httpx.AsyncClient) -> bool:
    return await troubles(http, "nowhere") == [NO_ROOM, NO_ROOM]


async def test_a_shutdown_gives_every_node_back(
    cluster: LocalCluster, http: httpx.AsyncClient, scale: Scale
) -> None:
    running, waiting = await submit(http, "small", **LONG), await submit(http, "nowhere")
    await eventually(lambda: scale.groups() == {"small": 1, "nowhere": 1})
    await eventually(lambda: in_state(http, "small", "running"))
    await asyncio.to_thread(cluster.serve, "shutdown", "--yes", "--address", cluster.dashboard)
    await eventually(lambda: not scale.groups()["nowhere"])
    await cluster.is_empty()
    await nothing_is_left(cluster, scale)
    assert await ends(cluster, running) == ["completed"]
    assert await ends(cluster, waiting) == []  # the next deployment finds it
