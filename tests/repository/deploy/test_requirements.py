"""deploy/requirements*.txt lock what the image installs: tested versions, with hashes."""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deploy.manifests import ROOT, pins, project

REQUIREMENTS = (ROOT / "deploy" / "requirements.txt").read_text()
FOR_CPUS = (ROOT / "deploy" / "requirements-cpu.txt").read_text()

REQUIREMENT = re.compile(r"([a-z0-9-]+)==([a-z0-9.]+)((?: --hash=sha256:[0-9a-f]{64})+)")
"""One line: name, public version (no build label such as +cpu), hashes."""

LEFT_OUT_OF_CONSTRAINTS = re.compile(r"nvidia-|cuda-|triton$|setuptools$")


def requirement_lines(text: str = REQUIREMENTS) -> list[str]:
    """The requirements, each on one line; comments and options are left out."""
    joined = re.sub(r"\s*\\\n\s*", " ", text)
    return [line for line in joined.splitlines() if line and not line.startswith(("#", "--"))]


LOCKED = {
    match[1]: match[2]
    for match in map(REQUIREMENT.fullmatch, requirement_lines())
    if match is not None
}
"""Versions by normalized name."""
CONSTRAINTS = {canonicalize_name(name): version for name, version in pins().items()}
PROJECT = project()


def test_every_requirement_has_one_version_and_hashes() -> None:
    assert [line for line in requirement_lines() if not REQUIREMENT.fullmatch(line)] == []


def test_versions_are_those_of_the_constraints() -> None:
    shared = LOCKED.keys() & CONSTRAINTS.keys()
    assert {name: LOCKED[name] for name in shared} == {name: CONSTRAINTS[name] for name in shared}


def test_only_what_torch_brings_is_not_in_the_constraints() -> None:
    more = LOCKED.keys() - CONSTRAINTS.keys()
    assert {name for name in more if not LEFT_OUT_OF_CONSTRAINTS.match(name)} == set()


def test_every_dependency_of_darkroom_is_locked() -> None:
    """If not: run `make lock`."""
    dependencies = map(Requirement, PROJECT["project"]["dependencies"])
    assert {
        str(dependency)
        for dependency in dependencies
        if LOCKED.get(canonicalize_name(dependency.name), "0") not in dependency.specifier
    } == set()


def test_darkroom_can_be_built_with_what_is_locked() -> None:
    """The image builds it without isolation, which would fetch packages without a hash."""
    for requirement in map(Requirement, PROJECT["build-system"]["requires"]):
        assert LOCKED[requirement.name] in requirement.specifier


def test_the_file_for_cpus_differs_in_torch_and_what_that_brings_for_gpus() -> None:
    only_gpus = re.compile(r"nvidia-|cuda-|triton$")
    both = {line for line in requirement_lines() if not only_gpus.match(line.split("==")[0])}
    cpus = set(requirement_lines(FOR_CPUS))
    torch = next(line for line in both if line.startswith("torch=="))
    version = torch.split(" ")[0]
    assert both - cpus == {torch}
    (of_cpus,) = cpus - both
    assert re.fullmatch(re.escape(version) + r"\+cpu( --hash=sha256:[0-9a-f]{64})+", of_cpus)
    options = [line for line in FOR_CPUS.splitlines() if line.startswith("-")]
    assert options == ["--only-binary :all:"]
