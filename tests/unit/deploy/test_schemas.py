"""Every manifest has the form that the API server takes, as it is written and as it is applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support.deploy.manifests import (
    DEPLOY,
    OVERLAYS,
    PARTS,
    Manifest,
    find,
    manifest_files,
    pod_templates,
    read,
    rendered,
    written_manifests,
)
from tests.support.deploy.schemas import SCHEMA_FILES, check, unknown_fields

KUBERNETES = "1.34"
"""The oldest version that is still kept up: what it knows, newer ones know."""

OBJECTS = [
    pytest.param(path, number, id=f"{path}-{number}-{manifest['kind']}")
    for path in manifest_files()
    for number, manifest in enumerate(read(path))
]


def check_object(manifest: Manifest) -> None:
    if manifest["kind"] in SCHEMA_FILES:
        check(manifest)
    else:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)


@pytest.mark.parametrize(("path", "number"), OBJECTS)
def test_object_is_valid_by_its_schema(path: Path, number: int) -> None:
    check_object(read(path)[number])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_kubernetes_itself_defines_is_valid_in_every_overlay(overlay: str) -> None:
    for manifest in rendered(overlay):
        if manifest["kind"] not in SCHEMA_FILES:
            check_object(manifest)


@pytest.mark.parametrize(
    "kind",
    ["RayService", "Cluster", "PodMonitor", "ScrapeConfig", "PrometheusRule", "Certificate"],
)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_operators_define_is_valid_in_every_overlay(overlay: str, kind: str) -> None:
    for manifest in rendered(overlay):
        if manifest["kind"] == kind:
            check(manifest)


def test_every_folder_of_manifests_is_part_of_the_overlay_for_a_cluster() -> None:
    overlay = yaml.safe_load((DEPLOY / "overlays/cluster/kustomization.yaml").read_text())
    assert {*overlay["resources"], *overlay["components"]} == {f"../../{part}" for part in PARTS}


@pytest.mark.parametrize("folder", [*PARTS, *(f"overlays/{each}" for each in OVERLAYS)])
def test_every_file_of_a_folder_is_used(folder: str) -> None:
    text = (DEPLOY / folder / "kustomization.yaml").read_text()
    names = {path.name for path in (DEPLOY / folder).iterdir()} - {"kustomization.yaml"}
    assert {name for name in names if name not in text} == set()


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_changed_setting_changes_the_ray_service(overlay: str) -> None:
    """By the name of the ConfigMap, which has its content's hash: KubeRay makes a new cluster."""
    manifests = rendered(overlay)
    maps = {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}
    for _, template in pod_templates([find(manifests, "RayService", "darkroom")]):
        for source in template["spec"]["containers"][0]["envFrom"]:
            assert source["configMapRef"]["name"] in maps
    assert "darkroom-settings" not in maps


def test_overlay_names_the_images_of_your_registry() -> None:
    images = {
        container["image"]
        for _, template in pod_templates([find(rendered("cluster"), "RayService", "darkroom")])
        for container in template["spec"]["containers"]
    }
    assert images == {
        "registry.example.com/darkroom:0.1.0",
        "registry.example.com/darkroom-cuda:0.1.0",
    }


def test_secrets_are_named_and_never_written() -> None:
    assert [each for each in written_manifests() if each["kind"] == "Secret"] == []


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
