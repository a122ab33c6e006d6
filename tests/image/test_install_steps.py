"""The steps of deploy/Dockerfile that install packages, run in a clean folder without a builder.

`make image` runs this for CPUs, `make image DEVICE=cuda` for GPUs. It takes minutes and
gigabytes, and a package index (TORCH_CPU_INDEX: another one for torch). What the image takes from
its distribution is not run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.deploy.dockerfile import copy_into, defaults, install_steps
from tests.support.deploy.manifests import DEPLOY

DEVICE = os.environ.get("DEVICE", "cpu")
ARGUMENTS = {name: os.environ.get(name, value) for name, value in defaults().items()}
ARGUMENTS["DEVICE"] = DEVICE
_OF_THE_INDEX = ("PIP_", "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "SSL_CERT_FILE")
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the environment that the image's system has after its build."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the lock files are for Python 3.11")
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder / "python", with_pip=True)
    build = folder / "build"
    copy_into(build)
    for step in install_steps():
        # What it clears is a folder of the image.
        run(step.replace("/build/", f"{build}/"), folder, cwd=build)
    return folder


def run(command: str, image: Path, *, cwd: Path) -> str:
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith(_OF_THE_INDEX)
    }
    path = f"{image / 'python' / 'bin'}:/usr/bin:/bin"
    env = {**inherited, "PATH": path, "HOME": str(image), **ARGUMENTS}
    done = subprocess.run(
        ["/bin/sh", "-ec", command], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_command_line_is_installed(image: Path) -> None:
    assert "Usage" in run("darkroom --help", image, cwd=image)


def test_ray_is_the_one_of_the_manifests(image: Path) -> None:
    version = run("ray --version", image, cwd=image).split()[-1]
    assert f'rayVersion: "{version}"' in (DEPLOY / "base/ray-service.yaml").read_text()


def test_application_and_engine_are_there_without_the_repository(image: Path) -> None:
    """And torch is the build for this device."""
    script = (
        "import serve_app.app, engine.diffusion.loading.networks, torch;"
        "assert 'python' in serve_app.app.__file__;"
        "print(torch.version.cuda)"
    )
    cuda = run(f'python -c "{script}"', image, cwd=image).split()[-1]
    assert (cuda == "None") == (DEVICE == "cpu")


def test_nothing_is_installed_that_the_lock_file_does_not_have(image: Path) -> None:
    lock = "requirements.txt" if DEVICE == "cuda" else "requirements-cpu.txt"
    locked = {
        line.split("==")[0]
        for line in (DEPLOY / lock).read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    installed = {
        line.split("==")[0].lower().replace("_", "-").replace(".", "-")
        for line in run("pip freeze --all", image, cwd=image).splitlines()
        if "==" in line
    }
    assert installed - locked <= {"pip", "darkroom"}
