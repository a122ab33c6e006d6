"""deploy/ray-up.yaml, by the rules of Ray's own cluster launcher."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import fillout_defaults, validate_config

from actors.scheduler.worker_reaper import CPU_NODE
from tests.support.deploy.manifests import DEPLOY, environment

RESOURCE = next(iter(CPU_NODE))
CONFIG: dict[str, Any] = yaml.safe_load((DEPLOY / "ray-up.yaml").read_text())
NODE_TYPES: dict[str, Any] = CONFIG["available_node_types"]


def test_ray_takes_it() -> None:
    validate_config(fillout_defaults(CONFIG))


def test_head_offers_nothing_that_an_actor_asks_for() -> None:
    assert NODE_TYPES[CONFIG["head_node_type"]]["resources"] == {"CPU": 0}
    assert "--num-gpus=0" in CONFIG["head_start_ray_commands"][-1]


def test_roles_and_replicas_fit_on_edge_nodes_only() -> None:
    assert {name for name, each in NODE_TYPES.items() if RESOURCE in each["resources"]} == {"edge"}
    assert NODE_TYPES["edge"]["min_workers"] >= 2
    assert "GPU" not in NODE_TYPES["edge"]["resources"]


def test_gpu_nodes_start_from_none() -> None:
    gpus = [each for each in NODE_TYPES.values() if each["resources"].get("GPU")]
    assert len(gpus) == 2
    assert all(each["min_workers"] == 0 < each["max_workers"] for each in gpus)


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_asks_for_the_token_and_has_serves_settings(commands: str) -> None:
    exports = CONFIG[commands][0]
    assert "RAY_AUTH_MODE=token" in exports
    same = ("RAY_SERVE_ENABLE_HA_PROXY", "RAY_SERVE_DEPLOYMENT_ACTOR_HEALTH_CHECK_PERIOD_S")
    ray = environment("base/ray.env")
    assert all(f"{name}={ray[name]}" in exports for name in same)
    assert CONFIG[commands][-1].startswith(". ~/ray.sh; ulimit -n 65536;")
