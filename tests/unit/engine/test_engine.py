"""Real pixels, and who is on the device when, with the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine
from engine.errors import Cancelled, CheckpointUnavailable, EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.reports import Errored, ErroredNode, Finished, ImageReady, Progress
from tests.support.engine.diffusion_requests import compiled
from tests.support.engine.engines import Running, running
from tests.support.engine.latents import farthest
from tests.support.engine.workflows import Prompt, RunAll, Submit, node, text_to_image


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
    end = submit(text_to_image(positive=["10", 0]) | {"10": outside}).wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, NodeFailed)
    assert (end.error.node_id, end.error.class_type) == ("3", "KSampler")
    assert end.node is not None
    assert (end.node.node_id, end.node.class_type) == ("3", "KSampler")
    assert f"({end.node.class_type}): {end.node.exception}: " in str(end.error)
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
        end = engine.submit(text_to_image()).wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, CheckpointUnavailable)
    assert end.node == ErroredNode("4", "CheckpointLoaderSimple", "CheckpointUnavailable")


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


def test_a_run_that_waits_can_be_cancelled(submit: Submit) -> None:
    first = submit(text_to_image(steps=3000))
    assert isinstance(first.next(), Progress)
    lone = submit(text_to_image(), is_exclusive=True)
    last = submit(text_to_image())
    lone.cancel()
    lone.error(Cancelled)
    assert last.images()
    first.cancel()
    first.error(Cancelled)


def test_a_small_job_ends_before_a_long_chain_of_host_work(submit: Submit) -> None:
    submit(text_to_image()).wait()
    chain = submit(chain_of_scales(900))
    assert submit(text_to_image()).images()
    assert chain.queue.empty()
    chain.cancel()
    chain.error(Cancelled)


def saved_images(count: int) -> Prompt:
    sides = {"width": 64, "height": 64, "batch_size": 1}
    images = {f"{n}": node("EmptyImage", **sides, color=n) for n in range(count)}
    saves = {f"s{n}": node("SaveImage", images=[n, 0], filename_prefix="x") for n in images}
    return images | saves


def test_a_run_pauses_until_its_results_are_taken(submit: Submit) -> None:
    paused = submit(saved_images(40), max_untaken=3)
    assert submit(text_to_image()).images()
    assert paused.queue.qsize() == 3
    for number in range(40):
        event = paused.next()
        assert isinstance(event, ImageReady)
        assert event.index == number
        paused.take_result()
    assert paused.wait() == Finished(40)


def test_a_paused_run_can_be_cancelled(submit: Submit) -> None:
    paused = submit(saved_images(2), max_untaken=1)
    assert isinstance(paused.next(), ImageReady)
    paused.cancel()
    paused.error(Cancelled)


def chain_of_scales(count: int) -> dict[str, Any]:
    """Images that are scaled time after time."""
    chain = {"0": node("EmptyImage", width=512, height=512, batch_size=1, color=0)}
    how = {"upscale_method": "lanczos", "height": 512, "crop": "disabled"}
    for number in range(1, count + 1):
        width = 512 - 8 * (number % 2)
        chain[f"{number}"] = node("ImageScale", image=[f"{number - 1}", 0], width=width, **how)
    return chain | {"save": node("SaveImage", images=[f"{count}", 0], filename_prefix="x")}
