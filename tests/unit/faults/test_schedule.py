"""A schedule follows from its seed, deals every kind, and keeps its pace."""

from __future__ import annotations

from itertools import pairwise

from tests.faults.schedule import kinds_for, schedule

ALL = kinds_for(is_cluster=True)


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert schedule(7, 1800, kinds=ALL) == schedule(7, 1800, kinds=ALL)
    assert schedule(7, 1800, kinds=ALL) != schedule(8, 1800, kinds=ALL)


def test_faults_come_every_5_to_15_seconds_and_end_in_time() -> None:
    plan = schedule(7, 1800, kinds=ALL)
    gaps = [late.at_s - early.at_s for early, late in pairwise(plan)]
    assert min(gaps) > 4.9
    assert max(gaps) < 15.1
    assert all(planned.at_s + planned.lasts_s <= 1800 for planned in plan)


def test_every_kind_comes_once_before_any_comes_again() -> None:
    names = [planned.kind.name for planned in schedule(7, 3600, kinds=ALL)]
    assert len(names) > 2 * len(ALL)
    assert set(names[: len(ALL)]) == {kind.name for kind in ALL}


def test_a_schedule_may_have_some_kinds_alone() -> None:
    kinds = kinds_for(is_cluster=False, only={"engine_kill"})
    assert {planned.kind.name for planned in schedule(7, 60, kinds=kinds)} == {"engine_kill"}


def test_only_a_cluster_loses_log_servers_one_by_one_and_nodes() -> None:
    one, cluster = (
        {kind.name for kind in kinds_for(is_cluster=is_cluster)} for is_cluster in (False, True)
    )
    assert cluster - one == {
        "leader_kill",
        "leader_stop",
        "follower_kill",
        "database_stop",
        "node_kill",
    }
