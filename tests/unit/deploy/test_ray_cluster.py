"""deploy/ray-cluster.yaml says what the design asks for, in fields that KubeRay knows."""

import copy
import json
from typing import Any

import pytest

from settings.settings import Settings
from tests.support.deploy.manifests import (
    ROOT,
    Manifest,
    container,
    gpu_limit,
    node_groups,
    one,
)
from tests.support.deploy.schemas import schema_of, unknown_fields, validate

CPU_RESOURCE = "darkroom_cpu"


@pytest.fixture(scope="module")
def cluster() -> Manifest:
    return one("ray-cluster.yaml", "RayCluster")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return schema_of("RayCluster")


def custom_resources(group: Manifest) -> dict[str, float]:
    """What `ray start --resources=` receives, after a shell has taken the outer quotes away."""
    quoted = group["rayStartParams"].get("resources", '"{}"')
    return json.loads(json.loads(quoted))


def test_cluster_is_valid_by_kuberays_schema(cluster: Manifest, schema: dict[str, Any]) -> None:
    validate(cluster, schema)


def test_cluster_has_no_field_that_kuberay_does_not_know(
    cluster: Manifest, schema: dict[str, Any]
) -> None:
    assert unknown_fields(cluster, schema) == []


@pytest.mark.parametrize(
    ("parent", "misspelt"),
    [
        (["spec"], "enableIntreeAutoscaling"),
        (["spec", "autoscalerOptions"], "idleTimeoutS"),
        (["spec", "workerGroupSpecs", 0], "minReplica"),
        (["spec", "workerGroupSpecs", 0, "template", "spec"], "toleration"),
        (["spec", "headGroupSpec", "template", "spec", "containers", 0], "volumeMount"),
    ],
)
def test_misspelt_field_is_reported_though_the_schema_lets_it_pass(
    cluster: Manifest, schema: dict[str, Any], parent: list[str | int], misspelt: str
) -> None:
    broken = copy.deepcopy(cluster)
    owner: Any = broken
    for step in parent:
        owner = owner[step]
    owner[misspelt] = True

    validate(broken, schema)
    assert [path.rsplit(".", 1)[-1] for path in unknown_fields(broken, schema)] == [misspelt]


def test_metadata_has_only_kubernetes_own_members(cluster: Manifest) -> None:
    assert cluster["metadata"].keys() <= {"name", "namespace", "labels", "annotations"}


def test_cluster_scales_with_its_queue(cluster: Manifest) -> None:
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    assert cluster["spec"]["autoscalerOptions"]["version"] == "v2"


def test_gpu_nodes_start_from_none(cluster: Manifest) -> None:
    group = node_groups(cluster)["gpu"]
    assert gpu_limit(group) == 1
    assert group["minReplicas"] == 0
    assert group["maxReplicas"] > 0


def test_applying_the_file_again_leaves_the_autoscalers_number_of_nodes_alone(
    cluster: Manifest,
) -> None:
    assert all("replicas" not in group for group in cluster["spec"]["workerGroupSpecs"])


def test_head_has_no_gpu(cluster: Manifest) -> None:
    head = node_groups(cluster)["head"]
    assert gpu_limit(head) == 0
    assert head["rayStartParams"]["num-gpus"] == "0"


def test_roles_and_replicas_fit_on_cpu_nodes_only(cluster: Manifest) -> None:
    groups = node_groups(cluster).values()
    with_resource = [group for group in groups if CPU_RESOURCE in custom_resources(group)]
    assert with_resource
    assert all(gpu_limit(group) == 0 for group in with_resource)


def test_every_node_reads_the_same_models(cluster: Manifest) -> None:
    head = container(node_groups(cluster)["head"])
    env = {entry["name"]: entry.get("value") for entry in head["env"]}
    for group in node_groups(cluster).values():
        mounts = {mount["mountPath"]: mount for mount in container(group)["volumeMounts"]}
        assert mounts[env["DARKROOM_MODELS_DIR"]]["readOnly"] is True


def test_every_variable_is_a_setting(cluster: Manifest) -> None:
    known = Settings.variables()
    for group in node_groups(cluster).values():
        names = {entry["name"] for entry in container(group).get("env", ())}
        assert {name for name in names if name.startswith("DARKROOM_")} <= known


def test_secret_values_come_from_the_secret(cluster: Manifest) -> None:
    head = container(node_groups(cluster)["head"])
    env = {entry["name"]: entry for entry in head["env"]}
    for name in ("DARKROOM_SECRET", "DARKROOM_NATS_URL", "DARKROOM_DATABASE_URL"):
        assert "secretKeyRef" in env[name]["valueFrom"]


def test_gpu_nodes_have_no_secret(cluster: Manifest) -> None:
    """Workers are handed the settings that they are made from."""
    gpu = container(node_groups(cluster)["gpu"])
    assert {entry["name"] for entry in gpu.get("env", ())} & Settings.variables() == set()


def test_darkroom_asks_for_as_many_workers_as_there_may_be_gpu_nodes(
    cluster: Manifest,
) -> None:
    groups = node_groups(cluster)
    env = {entry["name"]: entry.get("value") for entry in container(groups["head"])["env"]}
    assert int(env["DARKROOM_MAX_WORKERS"]) == groups["gpu"]["maxReplicas"]


def test_ray_is_the_version_of_the_constraints(cluster: Manifest) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['spec']['rayVersion']}" in pins
