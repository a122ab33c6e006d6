"""Every sampler and every schedule, with the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engine.graph import names
from tests.support.engine.workflows import text_to_image

RunAll = Callable[..., list[Any]]
SAMPLERS = [row.name for row in names.SAMPLERS]
PAIRS = [(row.name, scheduler) for row in names.SAMPLERS for scheduler in ("karras", "beta")]
PAIRS += [
    (sampler, row.name)
    for row in names.SCHEDULERS
    for sampler in ("euler_ancestral", "dpmpp_2m", "dpmpp_2m_sde", "uni_pc")
]


@pytest.mark.parametrize("steps", [1, 3])
def test_every_sampler_and_schedule_gives_a_picture(run_all: RunAll, steps: int) -> None:
    pictures = run_all([text_to_image(sampler_name=a, scheduler=b, steps=steps) for a, b in PAIRS])
    for pair, picture in zip(PAIRS, pictures, strict=True):
        assert (picture.shape, picture.dtype) == ((64, 64, 3), np.uint8), pair
        assert picture.std() > 1, pair


def test_a_seed_makes_the_same_picture_in_any_company_and_another_another(
    run_all: RunAll,
) -> None:
    one, other = (
        [text_to_image(sampler_name=name, scheduler="karras", seed=seed) for name in SAMPLERS]
        for seed in (1, 2)
    )
    together = run_all(one + other)
    again = run_all(one[::-1])[::-1]
    for i, name in enumerate(SAMPLERS):
        first, second = (picture.astype(int) for picture in (together[i], again[i]))
        assert np.abs(first - second).max() <= 1, name
        assert np.abs(first - together[len(SAMPLERS) + i].astype(int)).max() > 10, name


def test_progress_ends_at_the_steps_that_were_asked_for(submit: Callable[..., Any]) -> None:
    for scheduler in ("ddim_uniform", "beta"):
        for sampler in ("euler", "heun", "dpm_2", "dpm_fast", "dpm_adaptive"):
            watched = submit(text_to_image(sampler_name=sampler, scheduler=scheduler, steps=6))
            watched.wait()
            told = [event for event in watched.events if type(event).__name__ == "Progress"]
            done = [event.done for event in told]
            assert done == sorted(set(done)), (sampler, scheduler)
            assert done[-1] == told[-1].total == 6, (sampler, scheduler)
