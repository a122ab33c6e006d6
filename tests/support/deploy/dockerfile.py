"""deploy/Dockerfile, read as a builder reads it: as far as that file goes."""

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
    """`RUN`, `COPY`, …"""
    text: str
    """The rest of it, on one line for each that the file has."""


def instructions(path: Path = DEPLOY / "Dockerfile") -> list[Instruction]:
    lines = [line for line in path.read_text().splitlines() if not re.match(r"\s*#", line)]
    joined = re.sub(r"\\\n", "\\\n", "\n".join(lines))
    found = re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", joined, re.MULTILINE)
    return [Instruction(name, text) for name, text in found]


def texts(name: str) -> list[str]:
    return [each.text for each in instructions() if each.name == name]


def defaults() -> dict[str, str]:
    """Of the build arguments."""
    return dict(text.split("=", 1) for text in texts("ARG"))


def copied() -> Iterator[tuple[list[str], str]]:
    """Sources and destination of each COPY."""
    for text in texts("COPY"):
        *sources, destination = text.split()
        yield sources, destination


def allowed() -> set[str]:
    """What .dockerignore lets a builder see."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("!")}


def copy_into(folder: Path) -> None:
    """What the image's build has in its working folder."""
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
    """The RUN instructions that install Python packages. Others need a builder: they are root's."""
    return [text for text in texts("RUN") if "pip install" in text]
