"""deploy/ray-cluster.yaml says what the design asks for, in fields that KubeRay knows."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from settings.settings import Settings

ROOT = Path(__file__).parents[3]
CPU_RESOURCE = "darkroom_cpu"


@pytest.fixture(scope="module")
def cluster() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "ray-cluster.yaml").read_text())


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    folder = os.environ.get("DARKROOM_SCHEMAS_DIR")
    if not folder:
        pytest.skip("DARKROOM_SCHEMAS_DIR is not set: KubeRay's schemas are not at hand")
    return json.loads((Path(folder) / "kuberay-raycluster-v1.json").read_text())


def unknown_fields(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Paths of the members that `schema` does not name.

    Kubernetes' structural schemas leave `additionalProperties` out and the API server drops what
    they do not name without an error, so that a misspelt field passes validation and does nothing.
    """
    if isinstance(value, list):
        items = schema.get("items", {})
        return [
            found
            for index, item in enumerate(value)
            for found in unknown_fields(item, items, f"{path}[{index}]")
        ]
    if not isinstance(value, dict) or is_open(schema):
        return []
    known, rest = schema.get("properties", {}), schema.get("additionalProperties")
    unknown = []
    for name, member in value.items():
        member_schema = known.get(name, rest)
        if member_schema is None or member_schema is False:
            unknown.append(f"{path}.{name}")
        elif isinstance(member_schema, dict):
            unknown += unknown_fields(member, member_schema, f"{path}.{name}")
    return unknown


def is_open(schema: dict[str, Any]) -> bool:
    """Whether an object may hold anything: it says so, or names no member at all."""
    return bool(
        schema.get("x-kubernetes-preserve-unknown-fields")
        or not (schema.keys() & {"properties", "additionalProperties"})
    )


def node_groups(cluster: dict[str, Any]) -> dict[str, dict[str, Any]]:
    workers = {group["groupName"]: group for group in cluster["spec"]["workerGroupSpecs"]}
    return {"head": cluster["spec"]["headGroupSpec"], **workers}


def container(group: dict[str, Any]) -> dict[str, Any]:
    """The first container, in which KubeRay runs Ray."""
    return group["template"]["spec"]["containers"][0]


def gpu_limit(group: dict[str, Any]) -> int:
    return int(container(group)["resources"]["limits"].get("nvidia.com/gpu", 0))


def custom_resources(group: dict[str, Any]) -> dict[str, float]:
    """What `ray start --resources=` receives, after a shell has taken the outer quotes away."""
    quoted = group["rayStartParams"].get("resources", '"{}"')
    return json.loads(json.loads(quoted))


def test_cluster_is_valid_by_kuberays_schema(
    cluster: dict[str, Any], schema: dict[str, Any]
) -> None:
    jsonschema.validate(cluster, schema)


def test_cluster_has_no_field_that_kuberay_does_not_know(
    cluster: dict[str, Any], schema: dict[str, Any]
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
    cluster: dict[str, Any], schema: dict[str, Any], parent: list[str | int], misspelt: str
) -> None:
    broken = copy.deepcopy(cluster)
    owner: Any = broken
    for step in parent:
        owner = owner[step]
    owner[misspelt] = True

    jsonschema.validate(broken, schema)
    assert [path.rsplit(".", 1)[-1] for path in unknown_fields(broken, schema)] == [misspelt]


@pytest.mark.parametrize(
    ("rule", "unknown"),
    [
        ({"properties": {"known": {}}}, [".other"]),
        ({"properties": {"known": {}}, "additionalProperties": False}, [".other"]),
        ({"properties": {"known": {}}, "additionalProperties": {"type": "integer"}}, []),
        ({"properties": {"known": {}}, "additionalProperties": True}, []),
        ({"properties": {"known": {}}, "x-kubernetes-preserve-unknown-fields": True}, []),
        ({"type": "object"}, []),
        ({"additionalProperties": {"properties": {"inner": {}}}}, [".known.a", ".other.b"]),
    ],
)
def test_unknown_fields_honours_what_a_schema_leaves_open(
    rule: dict[str, Any], unknown: list[str]
) -> None:
    value = {"known": {"a": 1}, "other": {"b": 2}}
    assert unknown_fields(value, rule) == unknown
    assert unknown_fields([value], {"items": rule}) == [f"[0]{path}" for path in unknown]


def test_metadata_has_only_kubernetes_own_members(cluster: dict[str, Any]) -> None:
    assert cluster["metadata"].keys() <= {"name", "namespace", "labels", "annotations"}


def test_cluster_scales_with_its_queue(cluster: dict[str, Any]) -> None:
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    assert cluster["spec"]["autoscalerOptions"]["version"] == "v2"


def test_gpu_nodes_start_from_none(cluster: dict[str, Any]) -> None:
    group = node_groups(cluster)["gpu"]
    assert gpu_limit(group) == 1
    assert group["minReplicas"] == 0
    assert group["maxReplicas"] > 0


def test_applying_the_file_again_leaves_the_autoscalers_number_of_nodes_alone(
    cluster: dict[str, Any],
) -> None:
    assert all("replicas" not in group for group in cluster["spec"]["workerGroupSpecs"])


def test_head_has_no_gpu(cluster: dict[str, Any]) -> None:
    head = node_groups(cluster)["head"]
    assert gpu_limit(head) == 0
    assert head["rayStartParams"]["num-gpus"] == "0"


def test_roles_and_replicas_fit_on_cpu_nodes_only(cluster: dict[str, Any]) -> None:
    groups = node_groups(cluster).values()
    with_resource = [group for group in groups if CPU_RESOURCE in custom_resources(group)]
    assert with_resource
    assert all(gpu_limit(group) == 0 for group in with_resource)


def test_every_node_reads_the_same_models(cluster: dict[str, Any]) -> None:
    head = container(node_groups(cluster)["head"])
    env = {entry["name"]: entry.get("value") for entry in head["env"]}
    for group in node_groups(cluster).values():
        mounts = {mount["mountPath"]: mount for mount in container(group)["volumeMounts"]}
        assert mounts[env["DARKROOM_MODELS_DIR"]]["readOnly"] is True


def test_every_variable_is_a_setting(cluster: dict[str, Any]) -> None:
    known = Settings.variables()
    for group in node_groups(cluster).values():
        names = {entry["name"] for entry in container(group).get("env", ())}
        assert {name for name in names if name.startswith("DARKROOM_")} <= known


def test_secret_values_come_from_the_secret(cluster: dict[str, Any]) -> None:
    head = container(node_groups(cluster)["head"])
    env = {entry["name"]: entry for entry in head["env"]}
    for name in ("DARKROOM_SECRET", "DARKROOM_NATS_URL", "DARKROOM_DATABASE_URL"):
        assert "secretKeyRef" in env[name]["valueFrom"]


def test_gpu_nodes_have_no_secret(cluster: dict[str, Any]) -> None:
    """Workers are handed the settings that they are made from."""
    gpu = container(node_groups(cluster)["gpu"])
    assert {entry["name"] for entry in gpu.get("env", ())} & Settings.variables() == set()


def test_darkroom_asks_for_as_many_workers_as_there_may_be_gpu_nodes(
    cluster: dict[str, Any],
) -> None:
    groups = node_groups(cluster)
    env = {entry["name"]: entry.get("value") for entry in container(groups["head"])["env"]}
    assert int(env["DARKROOM_MAX_WORKERS"]) == groups["gpu"]["maxReplicas"]


def test_ray_is_the_version_of_the_constraints(cluster: dict[str, Any]) -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['spec']['rayVersion']}" in pins
