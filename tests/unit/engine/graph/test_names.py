from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.graph import names


def recase(draw: Callable[..., Any], text: str) -> str:
    return "".join(c.upper() if draw(st.booleans()) else c.lower() for c in text)


@given(st.data(), st.sampled_from(names.SAMPLERS))
def test_samplers_are_known_in_any_spelling_and_case(
    data: st.DataObject, row: names.Sampler
) -> None:
    spelling = recase(data.draw, data.draw(st.sampled_from([row.name, row.label, *row.aliases])))
    assert names.sampler(spelling) == (row.name, None)
    assert names.sampler_alone(spelling) == row.name


@given(st.data(), st.sampled_from(names.SCHEDULERS))
def test_schedulers_are_known_in_any_spelling_and_case(
    data: st.DataObject, row: names.Scheduler
) -> None:
    spelling = recase(data.draw, data.draw(st.sampled_from([row.name, row.label, *row.aliases])))
    assert names.scheduler(spelling) == row.name


@given(st.data(), st.sampled_from(names.SAMPLERS), st.sampled_from(names.SCHEDULERS))
def test_joined_spelling_names_both(
    data: st.DataObject, sampler: names.Sampler, scheduler: names.Scheduler
) -> None:
    spelling = recase(data.draw, f"{sampler.label}  {scheduler.label} ")
    assert names.sampler(spelling) == (sampler.name, scheduler.name)
    assert names.resolve(spelling, "Automatic") == (sampler.name, scheduler.name)


@given(st.text())
def test_unknown_names_raise_value_error_that_lists_the_known(text: str) -> None:
    known = {s.casefold() for row in names.SAMPLERS for s in (row.name, row.label, *row.aliases)}
    if " ".join(text.casefold().split()) not in known:
        with pytest.raises(ValueError, match="Euler"):
            names.sampler(text)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        ("Euler", ("euler", "normal")),
        ("DPM++ 2M", ("dpmpp_2m", "karras")),
        ("Euler a", ("euler_ancestral", "normal")),
        ("DPM++ 2M SDE Heun", ("dpmpp_2m_sde_heun", "exponential")),
        ("DPM++ 2M SDE Heun Karras", ("dpmpp_2m_sde_heun", "karras")),
        ("DPM++ 2M SDE SGM Uniform", ("dpmpp_2m_sde", "sgm_uniform")),
        ("dpmpp_2m_sde_gpu", ("dpmpp_2m_sde_gpu", "exponential")),
        ("DPM++ 2M SDE GPU Karras", ("dpmpp_2m_sde_gpu", "karras")),
        ("DPM2 a Karras", ("dpm_2_ancestral", "karras")),
        ("DDIM", ("ddim", "normal")),
        ("Euler A CFG++", ("euler_ancestral_cfg_pp", "normal")),
        ("IPNDM_V", ("ipndm_v", "normal")),
        ("dpmpp_sde_gpu", ("dpmpp_sde_gpu", "karras")),
        ("dpmpp_3m_sde_gpu", ("dpmpp_3m_sde_gpu", "exponential")),
        ("LMS Uniform", ("lms", "normal")),
    ],
)
def test_spellings_of_webui_and_comfyui(spelling: str, expected: tuple[str, str]) -> None:
    assert names.resolve(spelling, "Automatic") == expected


def test_no_spelling_stands_for_two() -> None:
    for rows in (names.SAMPLERS, names.SCHEDULERS):
        spellings = [{s.casefold() for s in (row.name, row.label, *row.aliases)} for row in rows]
        assert sum(map(len, spellings)) == len(set.union(*spellings))


def test_a_scheduler_of_its_own_wins_over_a_joined_one() -> None:
    assert names.resolve("DPM++ 2M Karras", "Normal") == ("dpmpp_2m", "normal")


def test_unknown_scheduler_is_refused() -> None:
    with pytest.raises(ValueError, match="Karras"):
        names.scheduler("nope")


def test_automatic_stands_for_a_scheduler_of_the_table() -> None:
    assert {row.automatic for row in names.SAMPLERS} <= set(names.SCHEDULER_OF)
