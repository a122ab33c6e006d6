"""The manifests of deploy/, as files and as kustomize combines them."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
PARTS = ("base", "nats", "postgres", "redis", "monitoring", "comfyui")
OVERLAYS = ("cluster", "trial", "comfyui")
_OF_KUSTOMIZE = (
    "kustomization.yaml",
    "name-references.yaml",
    "nats-exporter.yaml",
    "worker-group.yaml",
)
"""Files for kustomize only, which are not sent to the API server."""


def manifest_files() -> list[Path]:
    """Return every file with objects of Kubernetes, by its path below deploy/."""
    folders = (*PARTS, *(f"overlays/{name}" for name in OVERLAYS))
    files = [path for folder in folders for path in sorted((DEPLOY / folder).glob("*.yaml"))]
    written = [path for path in files if path.name not in _OF_KUSTOMIZE]
    alone = (DEPLOY / "ray-cluster.yaml", DEPLOY / "models-loader.yaml")
    return [path.relative_to(DEPLOY) for path in (*alone, *written)]


def read(path: str | Path) -> list[Manifest]:
    """The objects of a file below deploy/."""
    return [each for each in yaml.safe_load_all((DEPLOY / path).read_text()) if each]


def one(path: str | Path, kind: str, name: str | None = None) -> Manifest:
    """Return the only object of this kind, and name if given, in a file below deploy/."""
    found = [
        each
        for each in read(path)
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''} in {path}"
    return found[0]


@cache
def rendered(overlay: str) -> list[Manifest]:
    """Return the objects that `kubectl apply -k` sends. Skips the test if no tool is installed."""
    tool = shutil.which("kustomize"), shutil.which("kubectl")
    if not any(tool):
        pytest.skip("neither kustomize nor kubectl is installed")
    command = [tool[0], "build"] if tool[0] else [str(tool[1]), "kustomize"]
    folder = DEPLOY / "overlays" / overlay
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    found = [each for each in manifests if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def ray_cluster_spec(manifest: Manifest) -> Manifest:
    """Return the spec of a RayCluster, or of the one within a RayService."""
    spec: Manifest = manifest["spec"]
    return spec.get("rayClusterConfig", spec)


def node_groups(manifest: Manifest) -> dict[str, Manifest]:
    """The groups of Ray nodes by name; the head's is `head`."""
    spec = ray_cluster_spec(manifest)
    workers = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    return {"head": spec["headGroupSpec"], **workers}


def container(group: Manifest) -> Manifest:
    """The first container, in which KubeRay runs Ray."""
    first: Manifest = group["template"]["spec"]["containers"][0]
    return first


def gpu_limit(group: Manifest) -> int:
    return int(container(group)["resources"]["limits"].get("nvidia.com/gpu", 0))


def pod_templates(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """Yield every pod template with the name of its object."""
    for manifest in manifests:
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] in {"RayCluster", "RayService"}:
            for group, spec in node_groups(manifest).items():
                yield f"{name}: {group}", spec["template"]
        elif manifest["kind"] == "Pod":
            yield name, manifest
        elif "template" in manifest.get("spec", {}):
            yield name, manifest["spec"]["template"]


def written_manifests() -> list[Manifest]:
    return [manifest for path in manifest_files() for manifest in read(path)]


def project() -> Manifest:
    """The content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def pins() -> dict[str, str]:
    """The versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def environment(path: str) -> dict[str, str]:
    """The variables of an .env file below deploy/."""
    lines = (DEPLOY / path).read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}
