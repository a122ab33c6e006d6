"""Nodes for endpoints with ComfyUI: their image, and their group beside the GPU nodes."""

from __future__ import annotations

from typing import Any

from tests.support.deploy.dockerfile import texts
from tests.support.deploy.manifests import (
    DEPLOY,
    Manifest,
    container,
    find,
    gpu_limit,
    node_groups,
    one,
    read,
    rendered,
)

DOCKERFILE = DEPLOY / "comfyui.Dockerfile"
GROUP: Manifest = read("comfyui/worker-group.yaml")[0][0]["value"]
GPU_GROUP = node_groups(one("base/ray-service.yaml", "RayService"))["gpu-l4"]
_COMPONENT = "app.kubernetes.io/component"


def test_the_image_has_the_same_darkroom_as_the_other_nodes() -> None:
    def packages(path: Any) -> set[str]:
        return {text for text in texts("COPY", path) if "requirements" not in text}

    assert packages(DOCKERFILE) - packages(DEPLOY / "Dockerfile") == {
        "--from=uv /uv /usr/local/bin/uv"
    }
    assert packages(DEPLOY / "Dockerfile") <= packages(DOCKERFILE)
    [python] = [text for text in texts("FROM") if text.startswith("python:3.11-")]
    steps = "\n".join(texts("RUN", DOCKERFILE))
    assert "uv python install --no-bin 3.11" in steps, python


def test_the_interpreter_of_comfyui_stays_that_of_its_image() -> None:
    installs = [
        line
        for text in texts("RUN", DOCKERFILE)
        for line in text.splitlines()
        if "pip install" in line
    ]
    assert [line.split()[0] for line in installs] == ["/opt/darkroom/bin/pip"] * 2
    assert "--require-hashes" in installs[0]
    [variables] = [text for text in texts("ENV", DOCKERFILE) if "PATH=" in text]
    assert 'PATH="$PATH:/opt/darkroom/bin"' in variables


def test_the_image_runs_as_the_user_of_the_pods() -> None:
    context = GROUP["template"]["spec"]["securityContext"]
    assert texts("USER", DOCKERFILE)[-1] == f"{context['runAsUser']}:{context['runAsGroup']}"


def test_its_nodes_differ_from_other_gpu_nodes_only_in_what_comfyui_needs() -> None:
    def shared(group: Manifest) -> Any:
        container_ = container(group)
        kept = {name: container_[name] for name in ("name", "envFrom", "ports", "lifecycle")}
        kept |= {"securityContext": container_["securityContext"]}
        spec = {**group["template"]["spec"], "nodeSelector": None, "containers": [kept]}
        return spec, group["template"]["metadata"]["annotations"]

    assert shared(GROUP) == shared(GPU_GROUP)
    assert "env" not in container(GROUP)
    assert gpu_limit(GROUP) == 1
    assert GROUP["minReplicas"] == 0


def test_an_endpoint_finds_these_nodes_and_no_others_by_their_label() -> None:
    labels = GROUP["labels"]
    assert labels == {_COMPONENT: GROUP["template"]["metadata"]["labels"][_COMPONENT]}
    groups = node_groups(find(rendered("comfyui"), "RayService", "darkroom"))
    fitting = [
        name for name, group in groups.items() if labels.items() <= group.get("labels", {}).items()
    ]
    assert fitting == ["comfyui"]
    page = (DEPLOY.parent / "docs" / "comfyui-endpoints.md").read_text()
    assert f"'labels={{{_COMPONENT}: comfyui}}'" in page
    assert f"'labels={{{_COMPONENT}: \"!comfyui\"}}'" in page
