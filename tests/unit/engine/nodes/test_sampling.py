"""The nodes that denoise, and decoding in tiles, with the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.errors import NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import Int
from engine.options import DeviceOptions
from engine.reports import Progress
from tests.support.engine.engines import running
from tests.support.engine.graphs import graph_of, refusal_of
from tests.support.engine.latents import farthest, latents_of, psnr_db_of
from tests.support.engine.workflows import Prompt, RunAll, Submit, node, text_to_image, with_input


def advanced(steps: int = 6, **inputs: Any) -> Prompt:
    """The usual workflow with KSamplerAdvanced in place of KSampler."""
    usual = text_to_image(steps=steps)
    given = dict(usual["3"]["inputs"])
    given["noise_seed"] = given.pop("seed")
    del given["denoise"]
    given |= {
        "add_noise": "enable",
        "start_at_step": 0,
        "end_at_step": 10_000,
        "return_with_leftover_noise": "disable",
    }
    return usual | {"3": node("KSamplerAdvanced", **(given | inputs))}


def in_two(at: int, **inputs: Any) -> Prompt:
    """Steps up to `at` in one node, the rest in another."""
    first = advanced(end_at_step=at, return_with_leftover_noise="enable", **inputs)
    second = advanced(start_at_step=at, add_noise="disable", **inputs)
    second["3"]["inputs"]["latent_image"] = ["3a", 0]
    return second | {"3a": first["3"]}


def latents(catalogue: Catalogue, *prompts: Prompt) -> list[Any]:
    return latents_of(prompts, catalogue)


@pytest.mark.parametrize("sampler", ["euler", "heun", "dpm_2", "uni_pc"])
def test_steps_shared_by_two_nodes_are_those_of_one(catalogue: Catalogue, sampler: str) -> None:
    whole, advanced_whole = latents(
        catalogue, text_to_image(steps=6, sampler_name=sampler), advanced(sampler_name=sampler)
    )
    assert np.array_equal(whole, advanced_whole)
    if sampler != "uni_pc":  # which learns from its past steps
        (split,) = latents(catalogue, in_two(3, sampler_name=sampler))
        assert psnr_db_of(split, whole) > 100


def test_leftover_noise_is_kept_or_taken_off(catalogue: Catalogue) -> None:
    kept, taken, shorter = latents(
        catalogue,
        advanced(end_at_step=3, return_with_leftover_noise="enable"),
        advanced(end_at_step=3),
        advanced(end_at_step=2, return_with_leftover_noise="enable"),
    )
    # The last step of `taken` goes on from where `shorter` stopped, past `kept`, to the estimate.
    step, whole = kept - shorter, taken - shorter
    share = float((step * whole).sum() / (whole * whole).sum())
    assert 0 < share < 1
    assert psnr_db_of(shorter + share * whole, kept) > 90


def test_nothing_is_done_where_no_step_is_left(catalogue: Catalogue) -> None:
    for inputs in (
        {"start_at_step": 6},
        {"end_at_step": 0},
        {"start_at_step": 4, "end_at_step": 2},
    ):
        (latent,) = latents(catalogue, advanced(**inputs))
        assert not latent.any(), inputs


def test_progress_counts_the_steps_of_each_node(submit: Submit, catalogue: Catalogue) -> None:
    for prompt, total in (
        (in_two(2), 6),
        (advanced(start_at_step=1, end_at_step=3), 2),
        (advanced(start_at_step=7), 0),
    ):
        assert graph_of(prompt, catalogue).total_steps == total
        watched = submit(prompt)
        watched.images()
        told = [event for event in watched.events if isinstance(event, Progress)]
        assert told == [Progress(done, total) for done in range(1, total + 1)]


def custom(sampler: str = "euler", *, link: list[Any] | None = None, **nodes: Any) -> Prompt:
    """The usual workflow with SamplerCustom along the sigmas of node "s"."""
    usual = text_to_image()
    names = ("model", "cfg", "positive", "negative", "latent_image")
    given = {name: usual["3"]["inputs"][name] for name in names}
    given |= {"add_noise": True, "noise_seed": 1}
    given |= {"sampler": ["k", 0], "sigmas": link or ["s", 0]}
    select = node("KSamplerSelect", sampler_name=sampler)
    return usual | {"3": node("SamplerCustom", **given), "k": select} | nodes


BASIC = node("BasicScheduler", model=["4", 0], scheduler="karras", steps=6, denoise=1.0)
BOUNDS = {"sigma_max": 14.614641, "sigma_min": 0.0291672}


@pytest.mark.parametrize(
    ("scheduler", "node_"),
    [
        ("karras", BASIC),
        ("karras", node("KarrasScheduler", steps=6, rho=7.0, **BOUNDS)),
        ("exponential", node("ExponentialScheduler", steps=6, **BOUNDS)),
        ("exponential", node("PolyexponentialScheduler", steps=6, rho=1.0, **BOUNDS)),
    ],
)
def test_a_sampler_may_be_in_parts(catalogue: Catalogue, scheduler: str, node_: Any) -> None:
    whole, parts = latents(catalogue, text_to_image(steps=6, scheduler=scheduler), custom(s=node_))
    assert psnr_db_of(parts, whole) > 90


def test_schedulers_differ_and_each_gives_a_picture(catalogue: Catalogue) -> None:
    found = latents(
        catalogue,
        custom(s=BASIC),
        with_input(custom(s=BASIC), "s", denoise=0.5),
        custom(s=node("SDTurboScheduler", model=["4", 0], steps=3, denoise=1.0)),
        custom(s=node("SDTurboScheduler", model=["4", 0], steps=3, denoise=0.5)),
        custom(s=node("VPScheduler", steps=6, beta_d=19.9, beta_min=0.1, eps_s=0.001)),
        custom(s=node("PolyexponentialScheduler", steps=6, rho=2.0, **BOUNDS)),
        custom("dpmpp_2m_sde_gpu", s=BASIC),
        custom("dpm_fast", s=BASIC),
    )
    for place, one in enumerate(found):
        assert np.isfinite(one).all()
        assert one.std() > 0.1
        assert all(psnr_db_of(one, other) < 60 for other in found[:place])


def test_a_schedule_can_be_cut_and_turned_round(catalogue: Catalogue) -> None:
    split = node("SplitSigmas", sigmas=["s", 0], step=2)
    first = custom(s=BASIC, x=split, link=["x", 0])
    second = with_input(
        custom(s=BASIC, x=split, link=["x", 1]), "3", add_noise=False, latent_image=["3a", 0]
    ) | {"3a": first["3"]}
    whole, in_two, noised = latents(
        catalogue, custom(s=BASIC), second, with_input(first, "x", step=0)
    )
    assert psnr_db_of(in_two, whole) > 90
    # A schedule of one sigma adds noise and removes none.
    assert noised.std() == pytest.approx(14.65 / 0.18215, rel=0.1)
    flipped = {"s": BASIC, "x": node("FlipSigmas", sigmas=["s", 0])}
    back = with_input(custom(link=["x", 0], **flipped), "3", add_noise=False, cfg=1.0)
    back["3"]["inputs"]["latent_image"] = ["3a", 0]
    back["3a"] = with_input(custom(s=BASIC), "3", cfg=1.0)["3"]
    (turned,) = latents(catalogue, back)
    assert turned.std() > 20


def test_the_second_output_is_the_latent_without_its_noise(catalogue: Catalogue) -> None:
    split = node("SplitSigmas", sigmas=["s", 0], step=3)
    cut = custom("dpm_2", s=BASIC, x=split, link=["x", 0])
    denoised = with_input(cut, "8", samples=["3", 1])
    whole = custom("dpm_2", s=BASIC)
    left, estimate, end, end_estimate = latents(
        catalogue, cut, denoised, whole, with_input(whole, "8", samples=["3", 1])
    )
    assert estimate.std() < left.std()
    assert psnr_db_of(end, end_estimate) > 90


def test_progress_counts_the_steps_of_the_schedule(submit: Submit, catalogue: Catalogue) -> None:
    split = node("SplitSigmas", sigmas=["s", 0], step=2)
    for prompt in (custom(s=BASIC), custom(s=BASIC, x=split, link=["x", 1])):
        assert graph_of(prompt, catalogue).total_steps == 6
        watched = submit(prompt)
        watched.images()
        told = [event.done for event in watched.events if isinstance(event, Progress)]
        assert told == sorted(set(told))
        assert told[-1] == 6


def test_steps_are_bounded_and_sigmas_sound(submit: Submit, catalogue: Catalogue) -> None:
    for class_type in ("BasicScheduler", "KarrasScheduler", "ExponentialScheduler", "VPScheduler"):
        declared = catalogue.node(class_type)
        assert declared is not None
        steps = declared.inputs["steps"]
        assert isinstance(steps, Int)
        assert steps.limit == "steps"
    many = with_input(custom(s=BASIC), "s", steps=501)
    assert "at most 500" in str(refusal_of(many, catalogue, max_steps=500))
    for bad in (
        node("KarrasScheduler", steps=6, rho=0.0, **BOUNDS),
        node("KarrasScheduler", steps=6, rho=7.0, sigma_max=10.0, sigma_min=0.0),
        node("VPScheduler", steps=6, beta_d=5000.0, beta_min=0.1, eps_s=0.001),
    ):
        assert submit(custom(s=bad)).error(NodeFailed).node_id == "s"


@pytest.mark.parametrize(
    ("given", "meant"), [(True, True), (False, False), (1, True), (0.0, False), ("0", False)]
)
def test_a_boolean_may_be_a_number(catalogue: Catalogue, given: object, meant: bool) -> None:
    graph = graph_of(with_input(custom(s=BASIC), "3", add_noise=given), catalogue)
    assert graph.node("3").literals["add_noise"] is meant


@pytest.mark.parametrize("given", ["yes", None, {}, float("nan")])
def test_what_is_neither_true_nor_false_is_refused(catalogue: Catalogue, given: object) -> None:
    refusal = refusal_of(with_input(custom(s=BASIC), "3", add_noise=given), catalogue)
    assert "BOOLEAN" in str(refusal)


def test_a_seed_of_their_own_for_the_noise_of_steps(run_all: RunAll, tiny_root: Path) -> None:
    samplers = ("euler", "euler_ancestral")
    prompts = [text_to_image(sampler_name=name, seed=2**64 - 1) for name in samplers]
    with running(tiny_root, options=DeviceOptions(step_seed_offset=1)) as engine:
        plain, noisy = map(farthest, run_all(prompts), engine.pictures(*prompts))
    assert plain == 0
    assert noisy > 10


def test_guidance_plus_plus_without_a_difference_is_eulers_method(catalogue: Catalogue) -> None:
    plain, one, strong = latents(
        catalogue,
        text_to_image(cfg=1.0),
        text_to_image(cfg=1.0, sampler_name="euler_cfg_pp", negative=["6", 0]),
        text_to_image(cfg=1.0, sampler_name="euler_cfg_pp"),
    )
    assert psnr_db_of(one, plain) > 90
    assert psnr_db_of(strong, plain) < 60


def in_one(**inputs: Any) -> Prompt:
    links = {"sampler": ["k", 0], "sigmas": ["t", 0], "latent_image": ["5", 0]}
    links |= {"model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0]}
    given = {"add_noise": True, "noise_seed": 5, "cfg": 7.0, **links, **inputs}
    return with_sampler(node("SamplerCustom", **given))


def in_parts(guider: Prompt, noise: Prompt) -> Prompt:
    links = {"noise": "n", "guider": "g", "sampler": "k", "sigmas": "t", "latent_image": "5"}
    sampler = node("SamplerCustomAdvanced", **{name: [at, 0] for name, at in links.items()})
    return with_sampler(sampler) | {"g": guider, "n": noise}


def with_sampler(sampler: Prompt) -> Prompt:
    chosen = node("KSamplerSelect", sampler_name="dpmpp_2m_sde")
    return text_to_image() | {"3": sampler, "k": chosen, "t": BASIC}


CFG = node("CFGGuider", model=["4", 0], positive=["6", 0], negative=["7", 0], cfg=7.0)
ALONE = node("BasicGuider", model=["4", 0], conditioning=["6", 0])
RANDOM = node("RandomNoise", noise_seed=5)
NONE = node("DisableNoise")


@pytest.mark.parametrize(
    ("guider", "noise", "same"),
    [
        (CFG, RANDOM, {}),
        (ALONE, RANDOM, {"cfg": 1.0}),
        (CFG, NONE, {"add_noise": False, "noise_seed": 0}),
    ],
)
def test_it_is_the_sampler_that_has_all_inputs_itself(
    guider: Prompt, noise: Prompt, same: Prompt, catalogue: Catalogue
) -> None:
    assert np.array_equal(*latents(catalogue, in_parts(guider, noise), in_one(**same)))


def test_a_text_alone_guides_a_sampler_that_asks_for_another(catalogue: Catalogue) -> None:
    prompt = in_parts(ALONE, RANDOM)
    prompt["k"] = node("KSamplerSelect", sampler_name="euler_cfg_pp")
    (found,) = latents(catalogue, prompt)
    assert np.isfinite(found).all()


def test_one_tile_is_the_whole_and_many_have_its_size(run_all: RunAll) -> None:
    whole = with_input(text_to_image(), "5", width=128, height=96)
    prompts = [whole]
    for side in (512, 64):
        tiles = {**whole["8"]["inputs"], "tile_size": side, "overlap": 16}
        prompts.append(whole | {"8": node("VAEDecodeTiled", **tiles)})
    expected, one, many = run_all(prompts)
    assert farthest(one, expected) <= 1
    assert many.shape == (96, 128, 3)
