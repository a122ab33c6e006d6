"""Each row of the table names a function of its own, and no function lacks a row."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_type_hints

from torch import Tensor

from engine.diffusion import samplers
from engine.diffusion.samplers.ancestral import churned
from engine.diffusion.samplers.multistep import stochastic_adams
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.sampler_lookup import function_at, sampling_of
from engine.graph import names
from engine.webui.sampler_names import SAMPLER_OF, SCHEDULER_OF

SAMPLER = {"x": Tensor, "sigmas": Tensor, "return": Sampling}
NOISY_SAMPLER = SAMPLER | {"noise_sampler": NoiseSampler}
SCHEDULE = {"levels": NoiseLevels, "steps": int, "return": Tensor}
NO_SAMPLERS = {sampling_of, stochastic_adams, churned}
"""They return the generator of a sampler, but are not samplers themselves."""


def public_functions() -> Iterator[tuple[str, Any]]:
    """The functions of the package, by the place that a row gives."""
    for module in iter_modules(samplers.__path__):
        found = vars(import_module(f"{samplers.__name__}.{module.name}"))
        for name, function in found.items():
            is_own = getattr(function, "__module__", "").endswith(f".{module.name}")
            if inspect.isfunction(function) and is_own and not name.startswith("_"):
                yield f"{module.name}:{name}", function


def test_a_row_names_a_sampler_that_takes_its_noise() -> None:
    for row in SAMPLER_OF.values():
        expected = SAMPLER if row.noise == "none" else NOISY_SAMPLER
        expected = expected if row.eta is None else expected | {"eta": float}
        if row.noise_interval is not None:
            expected = expected | {"interval": tuple[float, float]}
        assert get_type_hints(function_at(row.function)) == expected, row


def test_a_row_names_a_schedule() -> None:
    for row in SCHEDULER_OF.values():
        assert get_type_hints(function_at(row.function)) == SCHEDULE, row


def test_each_sampler_has_one_row() -> None:
    places = [
        place
        for place, function in public_functions()
        if get_type_hints(function).get("return") == Sampling and function not in NO_SAMPLERS
    ]
    assert sorted({row.function for row in SAMPLER_OF.values()}) == sorted(places)
    own = [row.function for row in names.SAMPLERS if not row.draws_path_on_device]
    assert len(set(own)) == len(own)


def test_each_schedule_has_one_row() -> None:
    places = [
        place for place, function in public_functions() if get_type_hints(function) == SCHEDULE
    ]
    assert sorted(row.function for row in SCHEDULER_OF.values()) == sorted(places)
