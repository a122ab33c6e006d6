from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engine.graph.seeds import resolve_seeds


def test_negative_seeds_are_drawn_and_others_kept(prompt: Callable[..., dict[str, Any]]) -> None:
    drawn = iter([11, 12])
    given = {
        "a": {"class_type": "KSampler", "inputs": {"seed": -1}},
        "b": {"class_type": "KSamplerAdvanced", "inputs": {"noise_seed": "-5"}},
        "c": {"class_type": "KSampler", "inputs": {"seed": 3}},
        "d": {"class_type": "KSampler", "inputs": {"seed": ["x", -1]}},
        "e": None,
        "f": {"inputs": [-1]},
    }
    before = json.dumps(given)
    resolved = resolve_seeds(given, lambda: next(drawn))
    assert resolved["a"]["inputs"]["seed"] == 11
    assert resolved["b"]["inputs"]["noise_seed"] == 12
    assert {key: resolved[key] for key in "cdef"} == {key: given[key] for key in "cdef"}
    assert json.dumps(given) == before
    assert resolve_seeds([1], lambda: 1) == [1]
