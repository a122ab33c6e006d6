"""Real pixels, with the tiny checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.engine import Engine
from engine.errors import Cancelled, CheckpointUnavailable, EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import Errored, Finished, ImageReady, Progress
from engine.webui.compiler import compile_parameters
from engine.webui.parameters import parse_parameters
from tests.support.engine.workflows import TINY, Watched, node, text_to_image

Submit = Callable[..., Watched]
RunAll = Callable[..., list[Any]]


def farthest(one: Any, other: Any) -> int:
    """The largest difference of two images, in levels of 255."""
    return int(np.abs(one.astype(int) - other.astype(int)).max())


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
    assert [farthest(one, other) <= 1 for one, other in zip(together, alone, strict=True)] == [
        True
    ] * 4


def test_each_image_of_a_batch_is_that_of_a_job_of_its_own(
    submit: Submit, catalogue: Catalogue
) -> None:
    def images(**body: Any) -> list[ImageReady]:
        body |= {"prompt": "a red circle", "width": 64, "height": 64, "steps": 4}
        parameters = parse_parameters(body)
        compiled = compile_parameters(parameters, catalogue, Limits(), default_checkpoint=TINY)
        return submit(compiled.prompt, first_index=compiled.first_index).images()

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
    assert [(image.index, image.node_id, image.seed) for image in images] == [
        (0, "9", 1),
        (1, "q9", 5),
    ]
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
    assert doomed.run is not None
    doomed.run.cancel()
    end = doomed.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, Cancelled)
    doomed.run.cancel()
    assert isinstance(other.wait(), Finished)
    assert doomed.queue.empty()


def test_a_failing_node_is_named_and_leaves_the_others(submit: Submit) -> None:
    other = submit(text_to_image(steps=6))
    area = {"width": 64, "height": 64, "x": 4096, "y": 0, "strength": 1.0}
    outside = node("ConditioningSetArea", conditioning=["6", 0], **area)
    end = submit(text_to_image(positive=["10", 0]) | {"10": outside}).wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, NodeFailed)
    assert (end.error.node_id, end.error.class_type) == ("3", "KSampler")
    assert isinstance(other.wait(), Finished)


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
    engine = Engine(models=empty_catalogue.models)
    engine.start()
    watched = Watched()
    engine.submit(validate(text_to_image(), empty_catalogue, Limits()), on_event=watched.take)
    end = watched.wait()
    engine.stop()
    assert isinstance(end, Errored)
    assert isinstance(end.error, CheckpointUnavailable)


def test_stopping_cancels_what_runs_and_takes_nothing_more(
    tiny_root: Path, catalogue: Catalogue
) -> None:
    engine = Engine(models=ModelsFolder(tiny_root))
    graph = validate(text_to_image(steps=3000), catalogue, Limits())
    early, late = Watched(), Watched()
    engine.submit(graph, on_event=early.take)
    engine.start()
    early.next()
    engine.submit(graph, on_event=late.take)
    engine.stop()
    for watched in (early, late):
        end = watched.wait()
        assert isinstance(end, Errored)
        assert isinstance(end.error, Cancelled)
    with pytest.raises(EngineError, match="stopped"):
        engine.submit(graph, on_event=late.take)


def test_first_index_must_cover_every_output(engine: Engine, catalogue: Catalogue) -> None:
    graph = validate(text_to_image(), catalogue, Limits())
    with pytest.raises(ValueError, match="9"):
        engine.submit(graph, on_event=lambda _: None, first_index={})


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
    assert watched.run is not None
    watched.run.cancel()
    assert isinstance(watched.wait(), Errored)
