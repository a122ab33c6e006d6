"""The servers and processes of the service are killed, stopped and frozen under steady load.

There are three nodes: a head without parts of Darkroom, and two edge nodes for HTTP, roles and one
worker; three NATS servers, each with a copy of every stream; and Postgres. SEED determines the
requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from events.types import Started
from tests.cluster.parts.cluster_parts import ClusterParts, cluster_parts
from tests.faults.checker.history import Folded, History
from tests.faults.checker.record import Record
from tests.faults.checker.settled import settled_history
from tests.faults.load import Load, load_on
from tests.faults.parts.injector import Injector
from tests.faults.run import check
from tests.faults.schedule import KINDS, ROLES, Planned
from tests.support.patience import FACTOR

pytestmark = pytest.mark.timeout(600)

SEED = int(os.environ.get("SEED", "7"))
OWNERS = ("alice", "bob")
PERIOD_S = 2.0
SETTLE_S = 120.0 * FACTOR
NODE = "node_kill"
FAULTS: dict[str, float] = {
    "leader_kill": 3.0,
    "follower_kill": 3.0,
    "leader_stop": 5.0,
    "database_dead": 11.0,  # longer than the time-out of a statement
    "database_stop": 6.0,
    "replica_stop": 6.0,
    NODE: 3.0,
    **{f"{role}_kill": 0.0 for role in ROLES},
}
"""The faults in order, each with its duration in seconds."""


@pytest.fixture
async def parts() -> AsyncIterator[ClusterParts]:
    """The running service."""
    async with cluster_parts() as parts:
        parts.cluster.settings["DARKROOM_WORKERS_KEPT_S"] = "15"
        await parts.cluster.start()
        yield parts


async def test_every_invariant_holds_after_each_part_was_harmed(
    parts: ClusterParts, tmp_path: Path
) -> None:
    cluster, options = parts.cluster, {"guilty_every": None, "period_s": PERIOD_S}
    with closing(Record(tmp_path / "record.jsonl")) as record:
        async with load_on(parts, cluster.url, record, seed=SEED, owners=OWNERS, **options) as load:
            interrupted = await harmed_under_load(parts, load, record)
            await load.settle(within_s=SETTLE_S)
            await load.ask_all(within_s=SETTLE_S)
            history = await settled_history(parts, record)
    history.save(tmp_path / "history.json")
    outcome = check(history)
    sys.stdout.write(f"\n{outcome.text}\n")
    assert outcome.holds, outcome.text
    assert [fault.kind for fault in history.faults if fault.hit] == [*FAULTS]
    assert attempts(history, interrupted) > 1, "the node was lost while it ran a job"
    await asyncio.to_thread(cluster.serve, "shutdown", "--yes", "--address", cluster.dashboard)
    await cluster.is_empty()


async def harmed_under_load(parts: ClusterParts, load: Load, record: Record) -> str:
    """Inject each fault, wait until jobs end again and all actors are back, and return the id of
    the job that ran on the lost node.
    """
    kinds = {kind.name: kind for kind in KINDS}
    injector, interrupted = Injector(parts, record, seed=SEED), ""
    async with load.running():
        await load.goes_on()
        for name, lasts_s in FAULTS.items():
            if name == NODE:
                interrupted = await load.begin_long()
            await injector.inject(Planned(0, kinds[name], lasts_s))
            await load.goes_on()
            await parts.cluster.is_whole()
    return interrupted


def attempts(history: History, job_id: str) -> int:
    return sum(isinstance(event.data, Started) for event in Folded(history).events[job_id])
