"""The processes of one run, identified by a mark in their environment, so that no others are
harmed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import psutil

MARK = "FAULTS_RUN"
TITLES = {
    "replica": "ray::ServeReplica:darkroom:Api",
    "controller": "ray::ServeController",
    "engine": "ray::EngineProcess",
    "job": "ray::JobProcess",
    "role": "ray::RoleProcess",
}


class Processes:
    """The processes with this run's mark, which every child inherits."""

    def __init__(self) -> None:
        self.mark = uuid4().hex

    def all(self) -> list[psutil.Process]:
        """Return them without zombies, each with `name` and `cmdline` in its `info`."""
        return [
            each
            for each in psutil.process_iter(["name", "cmdline", "environ", "status"])
            if each.pid != os.getpid()
            and (each.info["environ"] or {}).get(MARK) == self.mark
            and each.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def titled(self, part: str) -> list[int]:
        """Ids of the processes of a part, lowest first."""
        title = TITLES[part]
        return sorted(
            each.pid for each in self.all() if title in " ".join(each.info["cmdline"] or ())
        )

    def named(self, name: str) -> list[int]:
        """Ids of the processes of a program."""
        return sorted(each.pid for each in self.all() if each.info["name"] == name)

    def signal(self, pids: Iterable[int], number: int) -> list[int]:
        """Send a signal and return the processes that received it; each must still belong to this
        run.
        """
        mine = {each.pid for each in self.all()}
        reached = []
        for pid in mine.intersection(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
                reached.append(pid)
        return reached

    def end(self, *, within_s: float = 60.0) -> None:
        """Continue, terminate and finally kill all processes."""
        for number, patience_s in ((signal.SIGCONT, 0.0), (signal.SIGTERM, 3.0)):
            self.signal([each.pid for each in self.all()], number)
            psutil.wait_procs(self.all(), timeout=patience_s)
        give_up_at = time.monotonic() + within_s
        while (rest := self.all()) and time.monotonic() < give_up_at:
            self.signal([each.pid for each in rest], signal.SIGKILL)
            psutil.wait_procs(rest, timeout=1)


class RayState:
    """The state of Ray's GCS, read without joining the cluster, so that stopped processes are
    included.
    """

    def __init__(self, address: str) -> None:
        from ray._private.state import GlobalState
        from ray._raylet import GcsClientOptions

        self._state: Any = GlobalState()
        self._state._initialize_global_state(
            GcsClientOptions.create(
                address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False
            )
        )

    def actors(self) -> list[dict[str, Any]]:
        """Return the living or starting actors, each with `Name`, `Pid` and `State`."""
        table = self._state.actor_table(None, None, None)
        return [each for each in table.values() if each["State"] != "DEAD"]

    def pids(self, part: str) -> list[int]:
        """Return the process ids of the living actors with `part` in their name."""
        return sorted(
            each["Pid"]
            for each in self.actors()
            if part in each["Name"] and each["State"] == "ALIVE"
        )

    def placement_groups(self) -> list[str]:
        """Return the names of the placement groups that are not removed."""
        table = self._state.placement_group_table()
        return sorted(each["name"] for each in table.values() if each["state"] != "REMOVED")

    def node_of_group(self, name: str) -> str:
        """Return the id of the node on which this placement group is placed."""
        table = self._state.placement_group_table().values()
        group = next(each for each in table if (each["name"], each["state"]) == (name, "CREATED"))
        return str(group["bundles_to_node_id"][0])

    def node_resources(self) -> list[dict[str, float]]:
        """Return the resources of each living node."""
        return [node["Resources"] for node in self._state.node_table() if node["Alive"]]

    def nodes(self) -> int:
        return sum(node["Alive"] for node in self._state.node_table())
