"""Clients generated from the OpenAPI document, without a warning, run a job each.

The generators are those of `make clients`, which puts them on the path.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.programs import client_python, run

HERE = Path(__file__).parent

pytestmark = pytest.mark.timeout(1200)


def warnings(output: str) -> list[str]:
    return re.findall(r"(?im)^.*(?:warn|error|unsupported).*$", output)


def test_a_python_client_runs_a_job(
    document: Path, caller: Mapping[str, str], tmp_path: Path
) -> None:
    python = client_python()
    generator = python.with_name("openapi-python-client")
    options = ("--path", document, "--output-path", "client", "--fail-on-warning")
    assert warnings(run(generator, "generate", *options, cwd=tmp_path)) == []
    environment = {**caller, "PYTHONPATH": str(tmp_path / "client")}
    assert run(python, HERE / "job.py", cwd=tmp_path, env=environment) == "completed\n"


def test_a_typescript_client_runs_a_job(
    document: Path, caller: Mapping[str, str], tmp_path: Path
) -> None:
    project = tmp_path / "typescript"
    shutil.copytree(HERE / "typescript", project)
    run("npm", "ci", "--no-audit", "--no-fund", cwd=project)
    tools = project / "node_modules" / ".bin"
    options = ("--input", document, "--output", "client")
    assert warnings(run(tools / "openapi-ts", *options, cwd=project)) == []
    run(tools / "tsc", cwd=project)
    assert run("node", "built/job.js", cwd=project, env=caller) == "completed\n"
