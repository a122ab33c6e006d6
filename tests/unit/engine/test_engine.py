"""Real pixels, and who is on the device when, with the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine
from engine.errors import Cancelled, CheckpointUnavailable, EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.options import RunOptions
from engine.reports import EngineEvent, Finished, ImageReady, Progress
from tests.support.engine.diffusion_requests import compiled
from tests.support.engine.engines import Running, running
from tests.support.engine.graphs import graph_of
from tests.support.engine.latents import farthest
from tests.support.engine.workflows import (
    Prompt,
    RunAll,
    Submit,
    Watched,
    node,
    text_to_image,
)


def test_a_workflow_tells_progress_image_and_end_in_order(submit: Submit) -> None:
    watched = submit(text_to_image())
    (image,) = watched.images()
    assert watched.events[:4] == [Progress(done, 4) for done in (1, 2, 3, 4)]
    assert watched.events[4] is image
    (end,) = watched.events[5:]
    assert end == Finished(1)
    assert end.stage_s.keys() >= {"text", "denoise", "vae"}
    assert end.rows_per_call == 2  # with and without its text
    assert (image.index, image.node_id, image.seed) == (0, "9", 1)
    assert (image.pixels.shape, image.pixels.dtype) == ((64, 64, 3), np.uint8)
    assert image.pixels.std() > 10


def test_the_same_seed_gives_the_same_picture_and_another_another(run_all: RunAll) -> None:
    (first,) = run_all([text_to_image()])
    (again,) = run_all([text_to_image()])
    (other,) = run_all([text_to_image(seed=2)])
    assert np.array_equal(first, again)
    assert farthest(first, other) > 10


def test_samplers_guidance_and_prompt_change_the_picture(run_all: RunAll) -> None:
    prompts = [
        text_to_image(),
        text_to_image(sampler_name="dpmpp_2m"),
        text_to_image(scheduler="karras"),
        text_to_image(cfg=1.0),
        text_to_image() | {"6": node("CLIPTextEncode", text="a blue square", clip=["4", 1])},
        text_to_image() | {"6": node("CLIPTextEncode", text="a (red:1.4) circle", clip=["4", 1])},
    ]
    pictures = run_all(prompts)
    for index, picture in enumerate(pictures):
        assert all(farthest(picture, other) > 1 for other in pictures[:index])


def test_neighbours_change_a_picture_by_one_level_at_most(run_all: RunAll) -> None:
    long_prompt = node("CLIPTextEncode", text="red circle " * 60, clip=["4", 1])
    prompts = [
        text_to_image(seed=1),
        text_to_image(seed=2, steps=7, sampler_name="dpmpp_2m", scheduler="karras"),
        text_to_image(seed=3, cfg=1.0),
        text_to_image(seed=4, cfg=3.5) | {"6": long_prompt},
    ]
    together = run_all(prompts)
    alone = [run_all([prompt])[0] for prompt in prompts]
    assert max(map(farthest, together, alone)) <= 1


def test_each_image_of_a_batch_is_that_of_its_own_job(submit: Submit, catalogue: Catalogue) -> None:
    def images(**body: Any) -> list[ImageReady]:
        found = compiled(catalogue, **body, prompt="a red circle", steps=4)
        return submit(found.prompt, first_index=found.first_index).images()

    batch = images(seed=40, batch_size=3)
    assert [(image.index, image.seed) for image in batch] == [(0, 40), (1, 41), (2, 42)]
    for image in batch:
        (alone,) = images(seed=image.seed)
        assert farthest(image.pixels, alone.pixels) <= 1


def test_images_of_a_workflow_are_numbered_in_the_order_of_its_outputs(submit: Submit) -> None:
    slow = text_to_image(steps=8)
    quick = {f"q{i}": each for i, each in text_to_image(seed=5, steps=1).items() if i in "389"}
    quick["q8"] = node("VAEDecode", samples=["q3", 0], vae=["4", 2])
    quick["q9"] = node("SaveImage", images=["q8", 0], filename_prefix="x")
    watched = submit(slow | quick)
    images = watched.images()
    found = [(image.index, image.node_id, image.seed) for image in images]
    assert found == [(0, "9", 1), (1, "q9", 5)]
    told = [event.index for event in watched.events if isinstance(event, ImageReady)]
    assert told == [0, 1]


def test_one_seed_serves_a_workflows_batch(submit: Submit) -> None:
    latent = node("EmptyLatentImage", width=64, height=64, batch_size=2)
    images = submit(text_to_image() | {"5": latent}).images()
    assert [(image.index, image.seed) for image in images] == [(0, 1), (1, 1)]
    assert farthest(images[0].pixels, images[1].pixels) > 1


def test_samplers_of_one_job_share_calls(submit: Submit, engine: Engine) -> None:
    def activities(graph: Any) -> int:
        before = engine.activity.count
        assert submit(graph).images()
        return engine.activity.count - before

    one = text_to_image(steps=10)
    both = dict(one)
    both |= {"3b": text_to_image(seed=9, steps=10)["3"]}
    both |= {"8b": node("VAEDecode", samples=["3b", 0], vae=["4", 2])}
    both |= {"9b": node("SaveImage", images=["8b", 0], filename_prefix="x")}
    activities(one)
    # Three nodes and a decoded image; ten steps would be twenty more.
    assert activities(both) - activities(one) < 20


def test_cancelling_ends_a_run_and_leaves_the_others(submit: Submit) -> None:
    doomed = submit(text_to_image(steps=3000))
    other = submit(text_to_image(steps=30))
    while not isinstance(doomed.next(), Progress):
        pass
    doomed.cancel()
    doomed.error(Cancelled)
    doomed.cancel()
    assert other.images()
    assert doomed.queue.empty()


def test_a_failing_node_is_named_and_leaves_the_others(submit: Submit) -> None:
    other = submit(text_to_image(steps=6))
    area = {"width": 64, "height": 64, "x": 4096, "y": 0, "strength": 1.0}
    outside = node("ConditioningSetArea", conditioning=["6", 0], **area)
    error = submit(text_to_image(positive=["10", 0]) | {"10": outside}).error(NodeFailed)
    assert (error.node_id, error.class_type) == ("3", "KSampler")
    assert other.images()


def test_equal_requests_at_once_have_images_each(submit: Submit, catalogue: Catalogue) -> None:
    hires = {"enable_hr": True, "hr_scale": 1.5, "batch_size": 2}
    found = compiled(catalogue, **hires, prompt="a [red|blue] circle", seed=3, steps=3)
    runs = [submit(found.prompt, first_index=found.first_index) for _ in range(3)]
    one, *others = [run.images() for run in runs]
    assert all(image.pixels.shape == (96, 96, 3) for image in one)
    for images in (one, *others):
        assert [(image.index, image.seed) for image in images] == [(0, 3), (1, 4)]
        pixels = ([each.pixels for each in found] for found in (one, images))
        assert max(map(farthest, *pixels)) <= 1


def test_denoise_of_zero_keeps_the_latent(submit: Submit) -> None:
    assert len(submit(text_to_image(denoise=0)).images()) == 1


def test_a_callback_that_raises_ends_its_own_run_alone(
    submit: Submit, engine: Engine, catalogue: Catalogue
) -> None:
    def raises(_event: object) -> None:
        raise RuntimeError("callback")

    engine.submit(validate(text_to_image(), catalogue, Limits()), on_event=raises)
    assert isinstance(submit(text_to_image()).wait(), Finished)


def test_a_checkpoint_that_went_away_ends_the_run(empty_catalogue: Catalogue) -> None:
    with running(empty_catalogue.models.root) as engine:
        engine.submit(text_to_image()).error(CheckpointUnavailable)


def test_stopping_cancels_what_runs_and_takes_nothing_more(tiny_root: Path) -> None:
    rig, prompt = Running(tiny_root), text_to_image(steps=3000)
    early = rig.submit(prompt)
    rig.engine.start()
    early.next()
    late = rig.submit(prompt)
    rig.engine.stop()
    for watched in (early, late):
        watched.error(Cancelled)
    with pytest.raises(EngineError, match="stopped"):
        rig.submit(prompt)


def test_first_index_must_cover_every_output(submit: Submit) -> None:
    with pytest.raises(ValueError, match="9"):
        submit(text_to_image(), first_index={})


def test_previews_change_no_picture(submit: Submit) -> None:
    plain, shown = submit(text_to_image()), submit(text_to_image(), has_previews=True)
    assert np.array_equal(plain.images()[0].pixels, shown.images()[0].pixels)
    assert not any(isinstance(each, Progress) and each.preview for each in plain.events)


def test_a_run_shows_what_its_picture_looks_like_so_far(submit: Submit) -> None:
    watched = submit(text_to_image(steps=3000), has_previews=True)
    while not (isinstance(event := watched.next(), Progress) and event.preview):
        pass
    assert event.preview.startswith(b"\xff\xd8")
    assert event.class_type == "KSampler"
    watched.cancel()
    watched.error(Cancelled)


Start = Callable[..., Watched]


Told = list[tuple[str, EngineEvent]]


@pytest.fixture
def told() -> Told:
    """The events of all runs in the order in which they were told, each with the run's name."""
    return []


@pytest.fixture
def start(tiny: Running, told: Told) -> Start:
    """Submits a prompt under a name."""

    def start(name: str, prompt: Prompt, **options: Any) -> Watched:
        watched = Watched(tiny.engine)

        def take(event: EngineEvent) -> None:
            told.append((name, event))
            watched.take(event)

        graph = graph_of(prompt, tiny.catalogue)
        watched.run = tiny.engine.submit(graph, RunOptions(**options), on_event=take)
        return watched

    return start


def test_an_exclusive_run_shares_the_engine_with_no_other(start: Start, told: Told) -> None:
    first = start("first", text_to_image(steps=20))
    first.next()
    lone = start("lone", text_to_image(), is_exclusive=True)
    for watched in (first, lone, start("last", text_to_image())):
        assert watched.images()
    assert [name for name, _ in groupby(told, key=lambda each: each[0])] == [
        "first",
        "lone",
        "last",
    ]


def test_a_run_that_waits_can_be_cancelled(start: Start) -> None:
    first = start("first", text_to_image(steps=3000))
    assert isinstance(first.next(), Progress)
    lone = start("lone", text_to_image(), is_exclusive=True)
    last = start("last", text_to_image())
    lone.cancel()
    lone.error(Cancelled)
    assert last.images()
    first.cancel()
    first.error(Cancelled)


def test_a_small_job_ends_before_a_long_chain_of_host_work(start: Start, told: Told) -> None:
    start("warm", text_to_image()).wait()
    chain = start("chain", chain_of_scales(900))
    small = start("small", text_to_image())
    assert small.images()
    assert not any(name == "chain" for name, _ in told)
    chain.cancel()
    chain.error(Cancelled)


def saved_images(count: int) -> Prompt:
    sides = {"width": 64, "height": 64, "batch_size": 1}
    images = {f"{n}": node("EmptyImage", **sides, color=n) for n in range(count)}
    saves = {f"s{n}": node("SaveImage", images=[n, 0], filename_prefix="x") for n in images}
    return images | saves


def test_a_run_pauses_until_its_results_are_taken(start: Start) -> None:
    paused = start("paused", saved_images(40), max_untaken=3)
    assert start("other", text_to_image()).images()
    assert paused.queue.qsize() == 3
    for number in range(40):
        event = paused.next()
        assert isinstance(event, ImageReady)
        assert event.index == number
        paused.take_result()
    assert paused.wait() == Finished(40)


def test_a_paused_run_can_be_cancelled(start: Start) -> None:
    paused = start("paused", saved_images(2), max_untaken=1)
    assert isinstance(paused.next(), ImageReady)
    paused.cancel()
    paused.error(Cancelled)


def chain_of_scales(count: int) -> dict[str, Any]:
    """Images that are scaled time after time."""
    first = {"0": node("EmptyImage", width=512, height=512, batch_size=1, color=0)}
    how = {"upscale_method": "lanczos", "height": 512, "crop": "disabled"}
    scales = {
        str(number): node(
            "ImageScale", image=[str(number - 1), 0], width=512 - 8 * (number % 2), **how
        )
        for number in range(1, count + 1)
    }
    save = {"save": node("SaveImage", images=[str(count), 0], filename_prefix="x")}
    return first | scales | save
