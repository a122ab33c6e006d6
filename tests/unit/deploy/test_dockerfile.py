"""deploy/Dockerfile: what the image is made of, and as whom it runs."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tests.support.deploy.dockerfile import allowed, copied, defaults, instructions, texts
from tests.support.deploy.manifests import ROOT, container, node_groups, one

SOURCES = {source for sources, _ in copied() for source in sources}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_image_does_not_run_as_root() -> None:
    assert texts("USER") == ["10001:10001"]
    names = [each.name for each in instructions()]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")


def test_pods_run_as_the_images_user() -> None:
    for path, kind in (("base/ray-service.yaml", "RayService"), ("ray-cluster.yaml", "RayCluster")):
        for group in node_groups(one(path, kind)).values():
            context = group["template"]["spec"]["securityContext"]
            assert texts("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]


def test_every_package_of_the_project_is_copied(project: dict[str, Any]) -> None:
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name.removesuffix("*") for name in packages} <= SOURCES
    assert {project["project"]["readme"], *project["project"]["license-files"]} <= SOURCES


def test_a_builder_sees_what_is_copied_and_nothing_else() -> None:
    assert allowed() == SOURCES
    assert all((ROOT / source).exists() for source in SOURCES)


def test_python_is_the_one_of_the_lock_files(project: dict[str, Any]) -> None:
    assert texts("FROM") == ["python:3.11-slim-bookworm"]
    assert project["project"]["requires-python"] == ">=3.11"


def test_everything_is_installed_with_hashes() -> None:
    installs = [
        line for text in texts("RUN") for line in text.splitlines() if "pip install" in line
    ]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation ." in line
    assert defaults()["DEVICE"] == "cuda"


def test_kuberays_probes_find_their_commands() -> None:
    """bash is in the distribution's own image."""
    assert any("install --yes --no-install-recommends wget" in text for text in texts("RUN"))


def test_models_are_a_volume() -> None:
    assert any("/models" in text for text in texts("VOLUME"))
    assert not any(source.startswith("models") for source in SOURCES)


def test_ports_are_those_of_the_settings() -> None:
    ports = container(node_groups(one("base/ray-service.yaml", "RayService"))["edge"])["ports"]
    http = next(port["containerPort"] for port in ports if port["name"] == "serve")
    assert texts("EXPOSE") == [str(http)]
