"""Every graph that the references, the examples and the benchmarks run is within the limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.graphs import KINDS
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Choice
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from examples.service import ROOT
from tests.support.comfyui.cases import CASES
from tests.support.engine import parity

Prompt = Mapping[str, Any]
TYPES = {each.class_type: each for each in NODE_TYPES}
LARGEST = {"work": 300.0, "live_bytes": 256 * 2**20, "rows": 8, "tokens": 2000, "outputs": 8}
"""No reference costs more, so the limits leave room for jobs that are far larger."""


def prompts() -> Iterator[tuple[str, Prompt]]:
    yield from CASES.items()
    yield "example", json.loads((ROOT / "examples" / "workflow.json").read_text())["prompt"]
    yield from ((f"benchmark: {kind}", make(1)) for kind, make in KINDS.items())
    if parity.PARITY is not None:
        for path in sorted(parity.folder().glob("*/*/graph.json")):
            yield path.parent.name, json.loads(path.read_text())


def is_known(prompt: Prompt) -> bool:
    """Whether there is every node that the prompt has."""
    return all(each["class_type"] in TYPES for each in prompt.values())


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    """It lists every model that a prompt names."""
    for _, prompt in filter(lambda named: is_known(named[1]), prompts()):
        for each in prompt.values():
            for name, declared in TYPES[each["class_type"]].all_inputs.items():
                if isinstance(declared, Choice) and declared.folder:
                    file = tmp_path / declared.folder / each["inputs"][name]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.touch()
    return Catalogue(ModelsFolder(tmp_path))


def test_every_reference_is_far_within_the_limits(catalogue: Catalogue) -> None:
    costs = {
        name: asdict(validate(prompt, catalogue, Limits()).cost)
        for name, prompt in prompts()
        if is_known(prompt)
    }
    assert len(costs) >= len(CASES) + 2
    largest = {field: max((cost[field], name) for name, cost in costs.items()) for field in LARGEST}
    beyond = {field for field, (most, _) in largest.items() if most > LARGEST[field]}
    assert not beyond, largest
