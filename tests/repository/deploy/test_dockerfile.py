"""deploy/Dockerfile: what the image is made of, and as whom it runs."""

from __future__ import annotations

from tests.support.deploy.dockerfile import allowed, copied, defaults, instructions, texts
from tests.support.deploy.manifests import ROOT, node_groups, one, project

SOURCES = {source for sources, _ in copied() for source in sources}


def test_image_does_not_run_as_root() -> None:
    assert texts("USER") == ["10001:10001"]
    names = [each.name for each in instructions()]
    assert names.index("USER") > max(at for at, name in enumerate(names) if name == "RUN")


def test_pods_run_as_the_images_user() -> None:
    for path, kind in (("base/ray-service.yaml", "RayService"), ("ray-cluster.yaml", "RayCluster")):
        for group in node_groups(one(path, kind)).values():
            context = group["template"]["spec"]["securityContext"]
            assert texts("USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]


def test_every_package_of_the_project_is_copied() -> None:
    written = project()
    packages = written["tool"]["setuptools"]["packages"]["find"]["include"]
    folders = {name.removesuffix("*").replace("darkroom_client", "client") for name in packages}
    assert folders <= SOURCES
    assert {written["project"]["readme"], *written["project"]["license-files"]} <= SOURCES


def test_a_builder_sees_what_is_copied_and_nothing_else() -> None:
    assert allowed() == SOURCES
    assert all((ROOT / source).exists() for source in SOURCES)


def test_everything_is_installed_with_hashes() -> None:
    installs = [
        line for text in texts("RUN") for line in text.splitlines() if "pip install" in line
    ]
    assert installs
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation ." in line
    assert defaults()["DEVICE"] == "cuda"
