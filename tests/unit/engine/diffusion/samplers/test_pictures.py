"""Every sampler and every schedule, and the WebUI's noise and texts, with the tiny checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.graph import names
from engine.reports import Progress
from engine.webui.sampler_names import OWN_SAMPLERS, OWN_SCHEDULERS
from tests.support.engine.latents import farthest
from tests.support.engine.workflows import RunAll, Submit, node, text_to_image, webui_texts_of

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


def test_a_seed_makes_the_same_picture_in_any_company_and_another_another(run_all: RunAll) -> None:
    one, other = (
        [text_to_image(sampler_name=name, scheduler="karras", seed=seed) for name in SAMPLERS]
        for seed in (1, 2)
    )
    together = run_all(one + other)
    again = run_all(one[::-1])[::-1]
    for i, name in enumerate(SAMPLERS):
        assert farthest(together[i], again[i]) <= 1, name
        assert farthest(together[i], together[len(SAMPLERS) + i]) > 10, name


def test_progress_ends_at_the_steps_that_were_asked_for(submit: Submit) -> None:
    for scheduler in ("ddim_uniform", "beta"):
        for sampler in ("euler", "heun", "dpm_2", "dpm_fast", "dpm_adaptive"):
            watched = submit(text_to_image(sampler_name=sampler, scheduler=scheduler, steps=6))
            watched.wait()
            told = [event for event in watched.events if isinstance(event, Progress)]
            done = [event.done for event in told]
            assert done == sorted(set(done)), (sampler, scheduler)
            assert done[-1] == told[-1].total == 6, (sampler, scheduler)


OWN = [(row.name, row.automatic) for row in OWN_SAMPLERS]
BOTH = OWN + [
    (sampler, row.name) for row in OWN_SCHEDULERS for sampler in ("dpm_2", "dpmpp_2m_sde")
]


def webui(sampler: str, scheduler: str = "karras", **options: Any) -> dict[str, Any]:
    sampling = {"steps": 20, **options}
    found = text_to_image(sampler_name=sampler, scheduler=scheduler)
    found["3"]["class_type"] = "WebUISampler"
    found["3"]["inputs"] |= {"eta_noise_seed_delta": 0, "continues_noise": True, **sampling}
    return found


@pytest.mark.parametrize(
    ("pairs", "steps", "denoise"),
    [
        (BOTH, 1, 1.0),
        (BOTH, 3, 0.5),
        (OWN, 20, 1.0),  # below 20 Restart has no restart
    ],
    ids=["one step", "the end of a schedule", "20 steps"],
)
def test_every_sampler_and_schedule_of_the_webui_gives_a_picture(
    run_all: RunAll, pairs: list[tuple[str, str]], steps: int, denoise: float
) -> None:
    pictures = run_all([webui(a, b, steps=steps, denoise=denoise) for a, b in pairs])
    for pair, picture in zip(pairs, pictures, strict=True):
        assert picture.shape == (64, 64, 3), pair
        assert picture.std() > 1, pair


def test_a_variation_is_a_step_towards_the_picture_of_another_seed(run_all: RunAll) -> None:
    options: list[dict[str, Any]] = [
        {"seed": 5},
        {"seed": 5, "subseed": 9, "subseed_strength": 0.1},
        {"seed": 9},
        {"seed": 5, "subseed": 9, "subseed_strength": 1.0},
        {"seed": 5, "seed_resize_from_w": 32, "seed_resize_from_h": 32},
    ]
    own, near, other, there, resized = run_all([webui("euler", **each) for each in options])
    assert 0 < farthest(own, near) < farthest(own, other)
    assert farthest(other, there) <= 1
    assert farthest(own, resized) > 3


OF_NOISE: list[dict[str, Any]] = [
    {},
    {"continues_noise": False},
    {"eta_noise_seed_delta": 31337},
    {"noise_scale": "sigma", "eta": 0.5},
    {"eta": 0.0},
    {"randn_source": "NV"},
    {"randn_source": "NV", "eta_noise_seed_delta": 31337},
    {"randn_source": "NV", "subseed": 9, "subseed_strength": 0.5},
]
OF_CHURN: list[dict[str, Any]] = [
    {},
    {"s_churn": 20.0},
    {"s_churn": 20.0, "s_noise": 1.2},
    {"s_churn": 20.0, "s_tmin": 1.0, "s_tmax": 5.0},
    {"s_min_uncond": 100.0},
]


@pytest.mark.parametrize(
    ("sampler", "options", "least"), [("euler_ancestral", OF_NOISE, 3), ("euler", OF_CHURN, 1)]
)
def test_each_option_changes_the_picture(
    run_all: RunAll, sampler: str, options: list[dict[str, Any]], least: int
) -> None:
    pictures = run_all([webui(sampler, steps=8, **each) for each in options])
    for index, picture in enumerate(pictures):
        assert all(farthest(picture, other) > least for other in pictures[:index]), options[index]


@pytest.mark.parametrize(
    ("sampler", "options"),
    [("dpmpp_2m", {"s_churn": 20.0, "s_noise": 2.0}), ("euler", {"eta_noise_seed_delta": 31337})],
)
def test_a_sampler_ignores_what_has_no_effect_there(
    run_all: RunAll, sampler: str, options: dict[str, Any]
) -> None:
    assert farthest(*run_all([webui(sampler, **options), webui(sampler)])) == 0


def test_on_a_cpu_the_device_draws_the_noise_of_the_cpu(run_all: RunAll) -> None:
    for sampler in ("euler_ancestral", "dpmpp_2m_sde"):
        sources = [{}, {"randn_source": "CPU"}, {"randn_source": "GPU"}]
        own, *others = run_all([webui(sampler, **source) for source in sources])
        assert all(farthest(own, other) <= 1 for other in others), sampler


@pytest.mark.parametrize("sampler", [row for row in names.SAMPLERS if row.draws_path_on_device])
def test_on_a_cpu_a_sampler_with_the_path_of_the_device_is_the_plain_one(
    run_all: RunAll, sampler: names.Sampler
) -> None:
    both = [
        text_to_image(sampler_name=name, scheduler="karras")
        for name in (sampler.name, sampler.cpu_name)
    ]
    assert farthest(*run_all(both)) <= 1


def test_a_brownian_path_may_have_the_noise_of_cuda(run_all: RunAll) -> None:
    options: list[dict[str, Any]] = [{}, {"randn_source": "NV"}]
    assert farthest(*run_all([webui("dpmpp_2m_sde", **each) for each in options])) > 3


def test_opposite_edges_of_a_tile_fit(run_all: RunAll) -> None:
    def step_at_the_edge(picture: Any) -> float:
        """The step from the last column to the first, over the usual one between columns."""
        columns = picture.astype(float)
        usual = np.abs(np.diff(columns, axis=1)).mean()
        return float(np.abs(columns[:, 0] - columns[:, -1]).mean() / usual)

    tiled = webui("euler", steps=8)
    tiled["tiled"] = node("WebUITiling", model=["4", 0], vae=["4", 2])
    tiled["3"]["inputs"]["model"] = ["tiled", 0]
    tiled["8"]["inputs"]["vae"] = ["tiled", 1]
    plain, seamless, again = run_all([webui("euler", steps=8), tiled, webui("euler", steps=8)])
    assert step_at_the_edge(seamless) < step_at_the_edge(plain)
    assert farthest(plain, again) == 0


def test_a_refiner_takes_over(run_all: RunAll) -> None:
    def refined(switch_at: float, cfg: float = 5.0) -> dict[str, Any]:
        found = webui("euler", steps=8, cfg=cfg, refiner_model=["6b", 0])
        found["6b"] = node("FreeU", model=["4", 0], b1=1.3, b2=1.4, s1=0.5, s2=0.2)
        found["3"]["inputs"] |= {"refiner_switch_at": switch_at}
        return found

    late, early = refined(0.7), refined(0.0)
    only = webui("euler", steps=8, cfg=5.0)
    other = refined(0.0)
    other["3"]["inputs"]["model"] = ["6b", 0]
    pictures = run_all([only, late, early, other, refined(1.0)])
    assert farthest(pictures[0], pictures[1]) > 0
    assert farthest(pictures[1], pictures[2]) > 0
    assert farthest(pictures[2], pictures[3]) <= 1
    assert farthest(pictures[0], pictures[4]) <= 1


def test_without_eta_euler_a_is_euler(run_all: RunAll) -> None:
    ancestral, plain = run_all([webui("euler_ancestral", eta=0.0), webui("euler")])
    assert farthest(ancestral, plain) <= 1


def test_emphasis_and_padding_change_texts_that_have_weights_or_lengths(run_all: RunAll) -> None:
    def text(words: str, **options: Any) -> dict[str, Any]:
        found = webui("euler", steps=4, negative=["6", 1])
        return found | {"6": webui_texts_of(found["3"], words, **options)}

    weighed, plain = "a (red:1.6) circle", "a red circle"
    no_norm, ignore = {"emphasis": "No norm"}, {"emphasis": "Ignore"}
    kept, changed, ignored, without = run_all(
        [text(weighed), text(weighed, **no_norm), text(weighed, **ignore), text(plain, **no_norm)]
    )
    assert farthest(kept, changed) > 1
    assert farthest(ignored, without) <= 1
    short, padded = "[a:b BREAK c:2]", {"pads_texts": True, "makes_plain": True}
    one, other = run_all([text(short), text(short, **padded)])
    assert farthest(one, other) > 1
    typed, typeset = run_all([text('"a" dog', **padded), text("“a” dog", **padded)])
    assert farthest(typed, typeset) == 0
