"""Reads the Dockerfiles of deploy/ as a builder does, as far as they need it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.deploy.manifests import DEPLOY, ROOT


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    """The instruction: `RUN`, `COPY`, …"""
    text: str
    """The arguments; each line of the file is one line."""


DOCKERFILE = DEPLOY / "Dockerfile"


def instructions(path: Path = DOCKERFILE) -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not re.match(r"\s*#", line)]
    joined = re.sub(r"\\\n", "\\\n", "\n".join(lines))
    found = re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", joined, re.MULTILINE)
    return [Instruction(name, text) for name, text in found]


def texts(name: str, path: Path = DOCKERFILE) -> list[str]:
    return [each.text for each in instructions(path) if each.name == name]


def defaults() -> dict[str, str]:
    """Return the defaults of the build arguments."""
    return dict(text.split("=", 1) for text in texts("ARG"))


def copied() -> Iterator[tuple[list[str], str]]:
    """Yield sources and destination of each COPY."""
    for text in texts("COPY"):
        *sources, destination = text.split()
        yield sources, destination


def allowed() -> set[str]:
    """Return the files that .dockerignore allows."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("!")}


def copy_into(folder: Path) -> None:
    """Copy the files that the build has in its working folder."""
    ignored = shutil.ignore_patterns("__pycache__")
    for sources, destination in copied():
        for source in sources:
            target = folder / destination
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, target, ignore=ignored, dirs_exist_ok=True)
            else:
                into_folder = destination.endswith("/")
                (target if into_folder else target.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, target)


def install_steps() -> list[str]:
    """Return the RUN instructions that install Python packages. The others need root."""
    return [text for text in texts("RUN") if "pip install" in text]
