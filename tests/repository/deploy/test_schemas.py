"""Every manifest has the form that the API server takes, as it is written and as it is applied."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import pytest

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
)
from tests.support.deploy.schemas import SCHEMA_FILES, check

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


@pytest.mark.parametrize("kind", ["of Kubernetes itself", *SCHEMA_FILES])
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_is_valid(overlay: str, kind: str) -> None:
    """Kind by kind, because the schemas of operators may be missing."""
    for manifest in rendered(overlay):
        if kind == (
            manifest["kind"] if manifest["kind"] in SCHEMA_FILES else "of Kubernetes itself"
        ):
            check_object(manifest)


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
