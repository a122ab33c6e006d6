"""What holds for every pod of deploy/: rights, resources, and how it leaves."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    one,
    pod_templates,
    ray_cluster_spec,
    read,
    rendered,
    written_manifests,
)

TEMPLATES = dict(pod_templates(written_manifests()))
EXPORTER = read("monitoring/nats-exporter.yaml")[0]["spec"]["template"]["spec"]["containers"][0]
CONTAINERS = {
    f"{name}: {container['name']}": container
    for name, template in TEMPLATES.items()
    for container in template["spec"]["containers"]
} | {"nats: exporter": EXPORTER}


@pytest.mark.parametrize("name", TEMPLATES)
def test_pod_does_not_run_as_root(name: str) -> None:
    context = TEMPLATES[name]["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] > 0
    assert context["runAsGroup"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_has_no_rights_and_writes_nothing_of_its_own(name: str) -> None:
    context = CONTAINERS[name]["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("path", ["ray-cluster.yaml", "base/ray-service.yaml"])
def test_the_autoscaler_has_no_rights_either(path: str) -> None:
    autoscaler = ray_cluster_spec(read(path)[0])["autoscalerOptions"]
    assert autoscaler["securityContext"]["readOnlyRootFilesystem"] is True
    assert autoscaler["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert {"name": "scratch", "mountPath": "/tmp"} in autoscaler["volumeMounts"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_mount_is_of_a_volume(name: str) -> None:
    spec = TEMPLATES[name]["spec"]
    volumes = {volume["name"] for volume in spec.get("volumes", ())} | {"data"}
    for container in spec["containers"]:
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_the_head_may_ask_the_kubernetes_api(name: str) -> None:
    """Its autoscaler does, as an account that KubeRay gives the right to."""
    spec = TEMPLATES[name]["spec"]
    if not name.endswith(": head"):
        assert spec["automountServiceAccountToken"] is False


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_takes_none_of_it_away(overlay: str) -> None:
    for _, template in pod_templates(rendered(overlay)):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_images_are_of_a_version_that_stays() -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    images = [container["image"] for container in CONTAINERS.values()]
    images += [service["image"] for service in compose["services"].values()]
    images.append(one("postgres/cluster.yaml", "Cluster")["spec"]["imageName"])
    assert [image for image in images if ":" not in image or image.endswith(":latest")] == []


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_has_bounds(name: str) -> None:
    resources = CONTAINERS[name]["resources"]
    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert {"cpu", "memory"} <= resources["limits"].keys()


@pytest.mark.parametrize("path", ["base/disruption-budgets.yaml", "nats/stateful-set.yaml"])
def test_a_drain_takes_one_of_several_at_a_time(path: str) -> None:
    budget = one(path, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    wanted = budget["selector"]["matchLabels"].items()
    labels = [each.get("metadata", {}).get("labels", {}) for each in TEMPLATES.values()]
    selected = [each for each in labels if wanted <= each.items()]
    assert len(selected) == 1


@pytest.mark.parametrize("name", [name for name in TEMPLATES if name.startswith("Ray")])
def test_a_ray_node_is_replaced_and_never_restarted_or_moved(name: str) -> None:
    template = TEMPLATES[name]
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["spec"]["terminationGracePeriodSeconds"] == 60
    if name.startswith("RayService"):
        annotations = template["metadata"]["annotations"]
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_the_service_starts_before_its_workers_and_has_the_account_of_the_image_store() -> None:
    classes = {each["metadata"]["name"]: each for each in read("base/priority-classes.yaml")}
    assert classes["darkroom-service"]["value"] > classes["darkroom-gpu"]["value"]
    account = one("base/service-account.yaml", "ServiceAccount")["metadata"]["name"]
    services = {name: each["spec"] for name, each in TEMPLATES.items() if "RayService" in name}
    assert services
    for name, spec in services.items():
        priority = "darkroom-gpu" if "gpu" in name else "darkroom-service"
        assert spec["priorityClassName"] == priority
        if "head" not in name:
            assert spec["serviceAccountName"] == account


def test_the_namespace_refuses_pods_with_more_rights() -> None:
    labels = one("base/namespace.yaml", "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
