"""Ray's autoscaler, version 2, with nodes that are processes of this machine, and its decisions.

The nodes are Ray's own fake ones: the resources of a type, GPUs too, are only numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.cluster.parts.configuration import CPU_NODE
from tests.cluster.parts.local_cluster import LocalCluster
from tests.cluster.parts.ray_node import kill_all_with

NodeTypes = Mapping[str, Mapping[str, Any]]
"""The resources and the maximum number of each type, by name."""

_NODE_ID = "RAY_OVERRIDE_NODE_ID_FOR_TESTING"
"""The variable in which Ray's provider of fake nodes passes each node its id."""
_HEAD_ID = "f" * 51 + "00000"
"""The head's id in that provider."""
_HEAD_TYPE = "ray.head.default"
_PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
_COMMANDS = (
    *("initialization", "setup", "head_setup", "worker_setup"),
    *("head_start_ray", "worker_start_ray"),
)
"""Commands of a machine, which the autoscaler's configuration must contain."""
_OBJECT_STORE_BYTES = 100 * 1024**2
_IDLE_S = 3.0
_LOOK_PERIOD_S = 0.2
ENVIRONMENT = {
    "RAY_FAKE_CLUSTER": "1",
    "RAY_enable_autoscaler_v2": "1",
    "RAY_CLOUD_INSTANCE_ID": _HEAD_ID,
    _NODE_ID: _HEAD_ID,
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
}
"""Variables of the head in addition to those of every node."""
ENVIRONMENT_OF_ALL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Variables of all nodes and commands: the nodes that the head creates are at 127.0.0.1 too."""


def autoscaling_config(gcs: str, node_types: NodeTypes) -> dict[str, Any]:
    """Return the configuration file of the head's autoscaler."""
    head = {"resources": {"CPU": 0, **CPU_NODE}, "node_config": {}, "max_workers": 0}
    return {
        **{f"{when}_commands": [] for when in _COMMANDS},
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "file_mounts_sync_continuously": False,
        "cluster_name": "fake",
        "max_workers": sum(each["max_workers"] for each in node_types.values()),
        "idle_timeout_minutes": _IDLE_S / 60,
        "upscaling_speed": 100,
        "provider": {
            # It is named by its class, because Ray's packages lack the defaults of
            # `fake_multinode`.
            "type": "external",
            "module": _PROVIDER,
            "gcs_address": gcs,
            "head_node_id": _HEAD_ID,
            "launch_multiple": True,
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "head_node_type": _HEAD_TYPE,
        "available_node_types": {_HEAD_TYPE: head, **_with_defaults(node_types)},
    }


def _with_defaults(node_types: NodeTypes) -> dict[str, Any]:
    defaults = {"node_config": {}, "min_workers": 0}
    store = {"object_store_memory": _OBJECT_STORE_BYTES}
    return {
        name: {**defaults, **each, "resources": {**each["resources"], **store}}
        for name, each in node_types.items()
    }


async def lose_node_of(cluster: LocalCluster, group: str) -> None:
    """Kill all processes of the node on which this placement group is placed."""
    node_id = cluster.ray().node_of_group(group)
    await asyncio.to_thread(kill_all_with, _NODE_ID, node_id)


class Scale:
    """The current and the largest numbers of placement groups and nodes."""

    def __init__(self, cluster: LocalCluster, kinds: Iterable[str]) -> None:
        """`kinds`: resources that distinguish the types of nodes."""
        self.most_groups: Counter[str] = Counter()
        """The numbers by the id of their endpoint."""
        self.most_nodes: Counter[str] = Counter()
        """The numbers by their kind."""
        self._cluster = cluster
        self._kinds = tuple(kinds)

    def groups(self) -> Counter[str]:
        return Counter(name.split(":")[1] for name in self._cluster.workers())

    def nodes(self) -> Counter[str]:
        """Return the living nodes that the autoscaler has added."""
        resources = self._cluster.ray().node_resources()
        return Counter(kind for each in resources for kind in self._kinds if kind in each)

    def is_nothing(self) -> bool:
        return not self.groups() and not self.nodes()

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None]:
        """Reset and record the largest numbers while the context lasts."""
        self.most_groups.clear()
        self.most_nodes.clear()
        watching = asyncio.create_task(self._watch(), name="scale")
        try:
            yield
            assert not watching.done(), watching
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def _watch(self) -> None:
        while True:
            self.most_groups |= self.groups()
            self.most_nodes |= self.nodes()
            await asyncio.sleep(_LOOK_PERIOD_S)
