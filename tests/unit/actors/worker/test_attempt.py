"""One attempt: what the machine or a neighbour does is not charged to the job, and what the job
holds ends that job at most, never the actor that runs it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import pickle
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from actors.scheduler.fairness import checkpoint_of
from actors.worker.attempt import AttemptLimits, Plan, plan_of, plan_text
from actors.worker.engine_process import EngineLost, EngineState, RunRequest
from actors.worker.job_actor import RunOutcome
from actors.worker.result_file import FileReady
from engine.activity import ActivityKind
from engine.errors import (
    EngineError,
    GraphInvalid,
    MachineFailed,
    ModelsUnavailable,
    NodeFailed,
    OutOfMemory,
)
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.reports import EngineEvent, Errored, ErroredNode, Finished, ImageReady, TextReady
from engine.webui.generation_texts import user_comment
from events.decisions import Cancel
from events.job import Job
from events.types import Cancelled, Completed, Failed, FailedNode, Flavour, Terms
from settings.version import VERSION
from storage.file_names import JPEG, WEBP
from tests.support.engine.diffusion_requests import compiled_members
from tests.support.engine.workflows import text_to_image
from tests.support.events import image, submitted
from tests.support.media import sound, video
from tests.support.polling import eventually
from tests.support.runners import LIMITS, RunnersBench
from tests.support.worker import ScriptedEngine, picture, pictures

PlanWith: TypeAlias = Callable[[Callable[[Job], Plan]], None]
FULL = OSError(errno.EMFILE, "Too many open files")


@pytest.fixture
async def job_id(bench: RunnersBench) -> str:
    return (await bench.submit()).id


async def failure(bench: RunnersBench, job_id: str) -> str:
    """Why the job failed."""
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    assert await bench.queue.job_ids() == set()
    return end.message


@pytest.fixture
def plan_with(monkeypatch: pytest.MonkeyPatch) -> PlanWith:
    """Have jobs planned by a function of the test."""
    return lambda plan: monkeypatch.setattr(
        "actors.worker.attempt.plan_of", lambda job, *_: plan(job)
    )


# What the machine does.


class NoFiles(ScriptedEngine):
    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        raise FULL
        yield


class NoThreads(ScriptedEngine):
    async def check(self) -> EngineState:
        raise RuntimeError("can't start new thread")


class Taken(ScriptedEngine):
    async def run(self, request: RunRequest) -> Any:
        raise EngineLost("its node has died")
        yield


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        (NoFiles([]), "The machine failed: [Errno 24] Too many open"),
        (NoThreads([Finished(0)], gated=True), "The machine failed: can't start new thread"),
        (ScriptedEngine([Errored(MachineFailed("No room"))]), "No room"),
        (Taken([]), "its node has died"),
    ],
    ids=["no files", "no threads", "no room for the engine", "the engine was taken away"],
)
async def test_what_the_machine_does_costs_a_job_nothing(
    bench: RunnersBench, job_id: str, engine: ScriptedEngine, told: str
) -> None:
    for _ in range(4):
        assert await bench.run(engine, max_attempts=1) is RunOutcome.RETRY
    job = await bench.job(job_id)
    assert (job.blamed_attempts, job.bystander_attempts, job.is_suspect) == (0, 4, False)
    assert told in str(job.last_failure)
    assert await bench.run() is RunOutcome.COMPLETED


async def test_a_job_that_is_held_meanwhile_can_be_cancelled(
    bench: RunnersBench, job_id: str
) -> None:
    engine = ScriptedEngine([Errored(MachineFailed("no room"))])
    patient = replace(LIMITS, longest_machine_pause_s=3600)
    run = asyncio.create_task(bench.run(engine, limits=patient))

    async def is_spared() -> bool:
        return (await bench.job(job_id)).bystander_attempts == 1

    await eventually(is_spared)
    await bench.writer.execute(Cancel(), await bench.job(job_id))
    assert await run is RunOutcome.ENDED
    assert isinstance((await bench.job(job_id)).end, Cancelled)


async def test_a_job_that_is_held_meanwhile_kills_no_engine(
    bench: RunnersBench, job_id: str
) -> None:
    engine = ScriptedEngine([Errored(MachineFailed("no room"))])
    hasty = AttemptLimits(silence_s=0.5, longest_machine_pause_s=1.5)
    assert await bench.run(engine, limits=hasty) is RunOutcome.RETRY
    assert engine.kills == 0
    assert (await bench.job(job_id)).bystander_attempts == 1


async def test_memory_that_ran_out_beside_others_is_tried_alone(
    bench: RunnersBench, job_id: str
) -> None:
    full = ScriptedEngine([Errored(OutOfMemory("no room", True))])
    assert await bench.run(full) is RunOutcome.RETRY
    again = ScriptedEngine(pictures(1))
    assert await bench.run(again) is RunOutcome.COMPLETED
    assert again.requests[0].options.is_exclusive
    assert isinstance((await bench.job(job_id)).end, Completed)


async def test_memory_that_ran_out_alone_fails_the_job(bench: RunnersBench, job_id: str) -> None:
    assert await bench.run(ScriptedEngine([Errored(OutOfMemory())])) is RunOutcome.ENDED
    end = (await bench.job(job_id)).end
    assert end == Failed(message=str(OutOfMemory()), code="out_of_memory")


@pytest.mark.parametrize(
    ("errored", "node"),
    [
        (
            Errored(NodeFailed("3", "A", "ValueError: no"), ErroredNode("3", "A", "ValueError")),
            FailedNode(id="3", class_type="A", exception="ValueError"),
        ),
        (
            Errored(
                GraphInvalid(
                    "prompt_outputs_failed_validation",
                    "no",
                    node_errors={
                        "7": {"errors": [{"type": "value_not_in_list"}], "class_type": "B"}
                    },
                )
            ),
            FailedNode(id="7", class_type="B", exception="GraphInvalid"),
        ),
        (Errored(OutOfMemory()), None),
    ],
    ids=["a node raised", "the graph is invalid there", "no node is known"],
)
async def test_a_failed_job_names_the_node_that_failed(
    bench: RunnersBench, job_id: str, errored: Errored, node: FailedNode | None
) -> None:
    assert await bench.run(ScriptedEngine([errored])) is RunOutcome.ENDED
    end = (await bench.job(job_id)).end
    assert isinstance(end, Failed)
    assert end.node == node


@pytest.mark.usefixtures("job_id")
async def test_a_neighbours_load_of_two_minutes_is_waited_for(bench: RunnersBench) -> None:
    class Loading(ScriptedEngine):
        """Once it was asked, the load leaves it no time to answer."""

        asked = 0

        async def check(self) -> EngineState:
            self.asked += 1
            self.silent = self.asked > 1
            return await super().check()

    engine = Loading(pictures(1), gated=True)
    engine.state = EngineState(ActivityKind.LOAD, 470.0, jobs=4)
    quick = AttemptLimits(silence_s=0.05, start_s=30, heartbeat_s=0.01)
    run = asyncio.create_task(bench.run(engine, limits=quick))
    await eventually(lambda: engine.asked > 30)
    assert not run.done()
    engine.advance(5)
    assert await run is RunOutcome.COMPLETED
    assert engine.kills == 0


def test_a_neighbour_is_told_of_in_the_error_that_travels() -> None:
    errors: list[EngineError] = [OutOfMemory("no room", True), MachineFailed("no room")]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))


# What a job holds.


@pytest.mark.parametrize("extra_pnginfo", ["abc", [1], 5, {"日本": 1}, {"": 1}, {"a" * 80: 1}])
async def test_texts_that_no_png_can_hold_end_the_job(
    bench: RunnersBench, extra_pnginfo: Any
) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": extra_pnginfo}}
    job = await bench.submit(flavour=Flavour.WORKFLOW, request=request)
    assert await bench.run() is RunOutcome.ENDED
    assert "extra_data.extra_pnginfo" in await failure(bench, job.id)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("prompt"),
        TypeError("no"),
        RecursionError(),
        OSError(errno.ENAMETOOLONG, "File name too long"),
    ],
)
async def test_a_plan_that_fails_in_any_way_ends_the_job(
    bench: RunnersBench, job_id: str, plan_with: PlanWith, error: Exception
) -> None:
    def plan(_: Job) -> Plan:
        raise error

    plan_with(plan)
    assert await bench.run() is RunOutcome.ENDED
    message = await failure(bench, job_id)
    assert type(error).__name__ in message
    assert "Submit the job again" in message


async def test_a_picture_that_cannot_be_written_ends_the_job(
    bench: RunnersBench, job_id: str, plan_with: PlanWith
) -> None:
    texts: Any = {"日本": 1}
    plan_with(lambda _: Plan({}, None, texts, Limits()))
    assert await bench.run() is RunOutcome.ENDED
    assert "UnicodeEncodeError" in await failure(bench, job_id)


@pytest.mark.usefixtures("job_id")
async def test_a_plan_waits_for_a_models_folder_that_does_not_answer(
    bench: RunnersBench, plan_with: PlanWith
) -> None:
    silences = [ModelsUnavailable("silent"), ModelsUnavailable("silent")]

    def plan(_: Job) -> Plan:
        if silences:
            raise silences.pop()
        return Plan({}, None, {}, Limits())

    plan_with(plan)
    assert await bench.run() is RunOutcome.COMPLETED


@pytest.mark.usefixtures("job_id")
async def test_a_run_that_needs_a_silent_models_folder_is_tried_again_in_the_same_attempt(
    bench: RunnersBench,
) -> None:
    class SilentOnce(ScriptedEngine):
        async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
            if not self.requests:
                self.requests.append(request)
                yield Errored(ModelsUnavailable("silent"))
                return
            async for event in super().run(request):
                yield event

    engine = SilentOnce(pictures(1))
    assert await bench.run(engine) is RunOutcome.COMPLETED
    assert [request.attempt for request in engine.requests] == [1, 1]


async def test_a_job_whose_events_cannot_be_read_leaves_the_queue(
    bench: RunnersBench, job_id: str
) -> None:
    bench.log.unreadable.add(job_id)
    assert await bench.run() is RunOutcome.ENDED
    assert await bench.queue.job_ids() == set()


async def test_a_job_of_a_later_version_keeps_its_entry(bench: RunnersBench, job_id: str) -> None:
    bench.log.of_later_version.add(job_id)
    assert await bench.run() is RunOutcome.LOST
    assert await bench.queue.job_ids() == {job_id}
    bench.log.of_later_version.clear()
    assert len(await bench.log.read(job_id)) == 1


@pytest.mark.parametrize("images", [1, 2])
async def test_a_note_outlives_an_actor_that_dies_after_an_image(
    bench: RunnersBench, images: int
) -> None:
    job = await bench.submit(images=images)
    entry = await bench.entry()
    first = ScriptedEngine([replace(picture(), notes=("vae_tiled",)), None], gated=True)
    run = asyncio.create_task(bench.runner(first).run(job.id, entry.ack_subject))
    first.advance()

    async def is_stored() -> bool:
        return len((await bench.job(job.id)).images) == 1

    await eventually(is_stored)
    run.cancel()
    await asyncio.wait({run})
    notes = ("vae_tiled", "embedding_left_out: ink")
    last = replace(picture(1), notes=notes)
    rest = ScriptedEngine([last, Finished(1, notes=notes)] if images == 2 else [])
    await bench.runner(rest).run(job.id, entry.ack_subject)
    job = await bench.job(job.id)
    assert isinstance(job.end, Completed)
    assert job.end.notes == notes[:images]
    assert [image.notes for image in job.images] == [notes[:1], notes[1:]][:images]


async def test_a_video_is_stored_with_its_poster_and_a_short_text_in_its_event(
    bench: RunnersBench, job_id: str
) -> None:
    long_text = "ä" * 2049
    files = [
        FileReady(0, "1", video(), "video/mp4"),
        FileReady(1, "2", sound(), "audio/wav"),
        FileReady(2, "3", b"broken", "video/webm"),
        FileReady(3, "4", "größe\0".encode(), "text/plain"),
        FileReady(4, "5", long_text.encode(), "text/plain"),
        FileReady(5, "6", b"\xff", "text/plain"),
        FileReady(6, "7", b"a,b", "text/csv"),
        TextReady(7, "8", "grün", 5),
    ]
    assert await bench.run(ScriptedEngine([*files, Finished(8)])) is RunOutcome.COMPLETED
    images = (await bench.job(job_id)).images
    assert [each.duration_s for each in images] == [2, 2, *[None] * 6]
    texts = [None, None, None, "größe\0", None, None, None, "grün"]
    assert [each.text for each in images] == texts
    assert (images[7].media_type, images[7].seed) == ("text/plain", 5)
    assert (images[0].width, images[0].height, images[1].width) == (64, 48, 0)
    assert [each.poster is None for each in images] == [False] + [True] * 7
    assert images[0].poster is not None
    for file in images[0].files:
        stored = await bench.images.get(file.key)
        digest = hashlib.sha256(stored).hexdigest()
        assert (file.size_bytes, file.digest) == (len(stored), f"sha256:{digest}")
    assert images[0].poster.key == f"{job_id}/1/0-poster.jpg"
    with Image.open(io.BytesIO(await bench.images.get(images[0].poster.key))) as poster:
        assert poster.size == (64, 48)


async def test_many_texts_are_not_all_in_the_events(bench: RunnersBench, job_id: str) -> None:
    texts = [FileReady(index, "1", b"a" * 4096, "text/plain") for index in range(18)]
    await bench.run(ScriptedEngine([*texts, Finished(18)]))
    images = (await bench.job(job_id)).images
    assert [each.text is None for each in images] == [False] * 16 + [True] * 2


async def test_a_video_that_is_read_for_too_long_is_stored_without_a_poster(
    bench: RunnersBench, job_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = tmp_path / "endless.py"
    endless.write_text("while True: pass")
    monkeypatch.setattr("actors.worker.media_file._PROGRAM", endless)
    monkeypatch.setattr("actors.worker.media_file._MEDIA_READ_S", 0.01)
    script = [FileReady(0, "1", video(), "video/mp4"), Finished(1)]
    assert await bench.run(ScriptedEngine(script)) is RunOutcome.COMPLETED
    [stored] = (await bench.job(job_id)).images
    assert (stored.duration_s, stored.poster, stored.media_type) == (None, None, "video/mp4")


@pytest.mark.parametrize(
    ("image_format", "media_type", "suffix"),
    [("webp", WEBP, "webp"), ("jpeg", JPEG, "jpg"), (None, None, "png")],
)
async def test_an_image_is_stored_in_the_format_that_its_job_says(
    bench: RunnersBench,
    tmp_path: Path,
    image_format: str | None,
    media_type: str | None,
    suffix: str,
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "example.safetensors").touch()
    request = {"prompt": "a red circle", "seed": 7}
    asked = compiled_members(Catalogue(bench.models), "example.safetensors", **request)
    quality = 80 if image_format else None
    job = await bench.submit(**asked, image_format=image_format, image_quality=quality)
    assert await bench.run() is RunOutcome.COMPLETED
    [stored] = (await bench.job(job.id)).images
    assert (stored.media_type, stored.key.rpartition("/")[2]) == (media_type, f"0.{suffix}")
    made = Image.open(io.BytesIO(await bench.images.get(stored.key)))
    said = made.info["parameters"] if media_type is None else user_comment(made)
    assert said is not None
    assert said.startswith("a red circle\nSteps: 20")


# What a job asks of the engine, and what its files say.


CHECKPOINT = "example.safetensors"
HASHED = "sshs_model_hash"


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    (tmp_path / CHECKPOINT).touch()
    return Catalogue(ModelsFolder(tmp_path))


def job_of(**fields: Any) -> Job:
    return Job("j", 1, 1, submitted(**fields), datetime(2026, 1, 1, tzinfo=UTC))


def text_of(catalogue: Catalogue, index: int, **fields: Any) -> dict[str, str]:
    """The PNG text of one image of a job."""
    plan = plan_of(job_of(**fields), catalogue.models, Limits())
    return plan_text(plan, ImageReady(index, "9", np.zeros((8, 8, 3), np.uint8), seed=7 + index))


def test_a_diffusion_image_says_graph_seed_and_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": "a (red:1.2) circle", "seed": 7, "batch_size": 2, "n_iter": 2}
    text = text_of(catalogue, 3, **compiled_members(catalogue, CHECKPOINT, **request))
    assert text.keys() == {"prompt", "parameters", "seed"}
    assert text["seed"] == "10"
    assert "save-3" in json.loads(text["prompt"])
    assert text["parameters"] == (
        "a (red:1.2) circle\nSteps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, "
        f"Seed: 10, Size: 512x512, Model: example, Version: Darkroom {VERSION}"
    )


def test_the_parameters_tell_the_hashes_of_networks(catalogue: Catalogue, tmp_path: Path) -> None:
    for kind in ("loras", "embeddings"):
        (tmp_path / kind).mkdir()
    save_file({"x": np.zeros(1)}, tmp_path / "loras" / "ink.safetensors", {HASHED: "AB" * 32})
    save_file({"x": np.zeros(1)}, tmp_path / "embeddings" / "bad.safetensors")
    request = {"prompt": "a <lora:ink:0.5> dog", "negative_prompt": "(bad:1.2)", "seed": 7}
    text = text_of(catalogue, 0, **compiled_members(catalogue, CHECKPOINT, **request))["parameters"]
    digest = hashlib.sha256((tmp_path / "embeddings" / "bad.safetensors").read_bytes()).hexdigest()
    assert f'Lora hashes: "ink: abababababab", TI hashes: "bad: {digest[:12]}", Version' in text


def test_a_workflows_image_has_no_parameters(catalogue: Catalogue) -> None:
    request = {"prompt": text_to_image(), "extra_data": {"extra_pnginfo": {"workflow": {"a": 1}}}}
    text = text_of(catalogue, 0, flavour=Flavour.WORKFLOW, request=request)
    assert text.keys() == {"prompt", "seed", "workflow"}


@pytest.fixture(params=Flavour)
def asked(request: pytest.FixtureRequest, catalogue: Catalogue) -> dict[str, Any]:
    """A request of each flavour."""
    if request.param is Flavour.DIFFUSION:
        return compiled_members(catalogue, CHECKPOINT, prompt="a red circle", seed=1)
    return {"flavour": Flavour.WORKFLOW, "request": {"prompt": text_to_image()}}


def test_an_image_of_a_bare_job_says_nothing(catalogue: Catalogue, asked: dict[str, Any]) -> None:
    assert text_of(catalogue, 0, **asked, bare=True) == {}


def test_images_that_are_stored_are_not_made_again(catalogue: Catalogue) -> None:
    job = job_of(**compiled_members(catalogue, CHECKPOINT, prompt="x", seed=5, batch_size=3))
    plan = partial(plan_of, models=catalogue.models, limits=Limits())
    assert plan(job).first_index == {"save-0": 0, "save-1": 1, "save-2": 2}
    later = plan(replace(job, images=(image(0), image(2))))
    assert later.first_index == {"save-1": 1}
    graph = validate(later.prompt, catalogue, Limits())
    assert {node.id for node in graph.nodes} == later.prompt.keys()
    samplers = {node.id for node in graph.nodes if node.class_type == "KSampler"}
    assert samplers == {"sample-1"}
    assert later.describe is not None
    assert "Seed: 6," in later.describe(1)


JUNK = [None, 5, "ckpt_name", [], ["ckpt_name"], {}, {"ckpt_name": ["a", 0]}, {"ckpt_name": 5}]


@pytest.mark.parametrize("junk", JUNK)
def test_a_request_of_a_wrong_shape_names_no_checkpoint(junk: Any) -> None:
    """It may be on the log: no check of today was there when it was accepted."""
    loader = {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}}
    prompts = ({"1": junk}, {"1": {"inputs": junk}}, junk)
    for request in ({}, *({"prompt": prompt} for prompt in prompts)):
        assert checkpoint_of(job_of(flavour=Flavour.WORKFLOW, request=request)) is None
    request = {"prompt": {"1": junk, "2": {"inputs": junk}, "3": loader}}
    assert checkpoint_of(job_of(flavour=Flavour.WORKFLOW, request=request)) == CHECKPOINT
    request = {"override_settings": junk, "sd_model_checkpoint": junk}
    assert checkpoint_of(job_of(request=request)) in {None, "ckpt_name"}


def test_a_job_has_the_limits_that_it_was_accepted_with(
    catalogue: Catalogue, asked: dict[str, Any]
) -> None:
    """Whatever its endpoint takes by now; a job that records none has those of its worker."""
    of_worker = Limits(max_nodes=99, max_steps=5, max_pixels=16, max_cost=1.0)
    terms = Terms(max_steps=20, max_pixels=2**20, max_cost=0.0)
    plan = partial(plan_of, models=catalogue.models, limits=of_worker)
    made = plan(job_of(**asked, terms=terms))
    assert made.limits == Limits(max_nodes=99, max_steps=20, max_pixels=2**20, max_cost=0.0)
    assert plan(job_of(**asked)).limits == of_worker
