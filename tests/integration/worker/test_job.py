"""One job on one worker, on a real nats-server: what is stored, and how the job ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from actors.worker.attempt import AttemptLimits
from actors.worker.job_actor import RunOutcome
from engine.errors import CheckpointUnavailable, DeviceFailed, EngineError, NodeFailed
from engine.reports import Errored, Finished, LatentReady, Progress
from events.decisions import Cancel, Erase
from events.types import (
    AttemptFailed,
    Cancelled,
    Completed,
    Erased,
    Failed,
    ImageStored,
    InputFile,
    Started,
)
from local.nats_server import NatsServer
from storage.file_names import SAFETENSORS
from storage.images import ImageStore, ImageStoreUnavailable
from tests.integration.worker.conftest import QUICK, Bench
from tests.support.polling import eventually
from tests.support.worker import ScriptedEngine, picture, pictures


async def test_a_job_is_started_stored_completed_and_acked(bench: Bench) -> None:
    job_id = (await bench.submit(images=2)).id
    assert await bench.run(ScriptedEngine(pictures(2)), actor="a") is RunOutcome.COMPLETED
    job = await bench.job(job_id)
    assert [image.index for image in job.images] == [0, 1]
    assert isinstance(job.end, Completed)
    assert job.actor == "a"
    png = await bench.images.get(job.images[1].key)
    assert png.startswith(b"\x89PNG")
    assert job.images[1].size_bytes == len(png)
    await eventually(bench.nothing_queued)


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (
            CheckpointUnavailable("no such checkpoint: x.safetensors"),
            Failed(message="no such checkpoint: x.safetensors", code="model_unavailable"),
        ),
        (
            NodeFailed("8", "VAEDecode", "ValueError: no"),
            Failed(message="node 8 (VAEDecode): ValueError: no", code="node_failed"),
        ),
    ],
    ids=["the engine refuses it", "a node fails"],
)
async def test_a_job_that_would_fail_again_fails_with_its_reason(
    bench: Bench, error: EngineError, end: Failed
) -> None:
    job_id = (await bench.submit()).id
    assert await bench.run(ScriptedEngine([Errored(error)])) is RunOutcome.ENDED
    assert (await bench.job(job_id)).end == end


async def test_a_job_on_a_faulty_device_is_tried_again_with_no_other(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    engine = ScriptedEngine([Errored(DeviceFailed("The device failed: CUDA error", False))])
    assert await bench.run(engine) is RunOutcome.RETRY
    job = await bench.job(job_id)
    assert job.last_failure == "The device failed: CUDA error"
    assert (job.blamed_attempts, job.is_suspect) == (0, True)


class Refusing(ImageStore):
    """An image store that is away for a while."""

    def __init__(self, url: str, *, times: int) -> None:
        super().__init__(url)
        self.times = times

    async def put(self, key: str, data: bytes) -> None:
        if self.times:
            self.times -= 1
            raise ImageStoreUnavailable("away")
        await super().put(key, data)


async def test_an_image_store_that_is_away_is_waited_for(bench: Bench, tmp_path: Path) -> None:
    job_id = (await bench.submit()).id
    entry = await bench.entry()
    bench.images = Refusing((tmp_path / "other").as_uri(), times=3)
    runner = bench.runner(ScriptedEngine(pictures(1)))
    assert await runner.run(entry.job_id, entry.ack_subject) is RunOutcome.COMPLETED
    assert (await bench.job(job_id)).attempts == 1


async def test_a_latent_is_stored_beside_the_images(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    samples = np.ones((1, 4, 2, 3), np.float32)
    engine = ScriptedEngine([picture(0), LatentReady(1, "9", samples, 7), Finished(2)])
    assert await bench.run(engine) is RunOutcome.COMPLETED
    image, latent = (await bench.job(job_id)).images
    assert (image.media_type, latent.media_type) == (None, SAFETENSORS)
    assert (latent.key, latent.seed) == (f"{job_id}/1/1.latent", 7)
    assert (latent.width, latent.height) == (24, 16)
    stored = await bench.images.get(latent.key)
    assert len(stored) == latent.size_bytes
    assert (load(stored)["latent_tensor"] == samples).all()


async def test_a_completed_job_tells_where_its_time_went(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    engine = ScriptedEngine([picture(0), Finished(1, {"denoise": 0.5}, rows_per_call=4.0)])
    assert await bench.run(engine) is RunOutcome.COMPLETED
    end = (await bench.job(job_id)).end
    assert isinstance(end, Completed)
    assert end.timing is not None
    assert (end.timing.stage_s["denoise"], end.timing.rows_per_call) == (0.5, 4.0)
    assert 0 < end.timing.stage_s["store"] < 10


async def test_the_engine_gets_the_files_that_were_recorded(bench: Bench) -> None:
    await bench.images.put("uploads/cat", b"a cat")
    await bench.submit(input_files={"cat.png": InputFile(key="uploads/cat", digest="")})
    engine = ScriptedEngine(pictures(1))
    assert await bench.run(engine) is RunOutcome.COMPLETED
    assert [request.options.input_files for request in engine.requests] == [{"cat.png": b"a cat"}]


@pytest.mark.parametrize("alone", [None, True])
async def test_the_engine_is_told_that_a_job_is_to_be_alone(bench: Bench, alone: bool) -> None:
    await bench.submit(alone=alone)
    engine = ScriptedEngine(pictures(1))
    await bench.run(engine)
    assert [request.options.is_unbatched for request in engine.requests] == [bool(alone)]


async def test_a_job_whose_input_file_is_gone_fails_and_says_so(bench: Bench) -> None:
    files = {"cat.png": InputFile(key="uploads/cat", digest="")}
    job_id = (await bench.submit(input_files=files)).id
    engine = ScriptedEngine(pictures(1))
    assert await bench.run(engine) is RunOutcome.ENDED
    assert engine.requests == []
    text = "The input file 'cat.png' does not exist any more. Upload it again and submit a new job."
    assert (await bench.job(job_id)).end == Failed(message=text, code="invalid_input")


async def test_after_an_engine_has_died_stored_images_are_kept(bench: Bench) -> None:
    job_id = (await bench.submit(images=2)).id
    dying = ScriptedEngine([Progress(1, 2), picture(0), None])
    assert await bench.run(dying) is RunOutcome.RETRY
    first = (await bench.job(job_id)).images[0]
    outcome = await bench.run(ScriptedEngine(pictures(2)), actor="b")
    assert outcome is RunOutcome.COMPLETED
    job = await bench.job(job_id)
    assert job.images[0] == first
    assert [image.attempt for image in job.images] == [1, 2]
    assert await bench.events(job_id) == [
        type(job.submitted), Started, ImageStored, AttemptFailed, Started, ImageStored, Completed,
    ]  # fmt: skip


async def test_a_job_that_breaks_its_engine_runs_alone_and_is_given_up(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    requests = []
    for attempt in range(4):
        engine = ScriptedEngine([None])
        assert await bench.run(engine, actor=f"a{attempt}") is RunOutcome.RETRY
        requests += engine.requests
    assert [request.options.is_exclusive for request in requests] == [False, True, True, True]
    fresh = ScriptedEngine(pictures(1))
    assert await bench.run(fresh) is RunOutcome.ENDED
    assert fresh.requests == []
    reason = "3 of them with no other job on the engine: The engine died: killed"
    end = (await bench.job(job_id)).end
    assert end == Failed(message=f"Gave up after 4 attempts, {reason}", code="engine_failed")


async def test_a_job_that_only_stood_by_is_not_charged_however_often(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    for attempt in range(5):
        engine = ScriptedEngine([None], active=False)
        assert await bench.run(engine, actor=f"a{attempt}") is RunOutcome.RETRY
        assert not engine.requests[0].options.is_exclusive
    job = await bench.job(job_id)
    assert (job.attempts, job.blamed_attempts, job.end) == (5, 0, None)
    outcome = await bench.run(ScriptedEngine(pictures(1)), actor="b")
    assert outcome is RunOutcome.COMPLETED


async def test_a_job_with_all_its_images_completes_without_the_engine(bench: Bench) -> None:
    job_id = (await bench.submit(images=1)).id
    dying = ScriptedEngine([picture(0), None])
    await bench.run(dying)
    idle = ScriptedEngine([])
    assert await bench.run(idle) is RunOutcome.COMPLETED
    assert idle.requests == []
    assert isinstance((await bench.job(job_id)).end, Completed)


async def test_a_running_job_is_cancelled_on_request(bench: Bench) -> None:
    job_id = (await bench.submit()).id
    engine = ScriptedEngine([Progress(1, 2), Finished(0)], gated=True)
    engine.advance()
    run = asyncio.create_task(bench.run(engine))
    await eventually(lambda: engine.requests)
    await bench.writer.execute(Cancel(), await bench.job(job_id))
    assert await run is RunOutcome.ENDED
    assert isinstance((await bench.job(job_id)).end, Cancelled)


async def test_an_actor_whose_job_is_erased_meanwhile_writes_nothing(bench: Bench) -> None:
    job_id = (await bench.submit(images=2)).id
    entry = await bench.entry()
    engine = ScriptedEngine([picture(0), picture(1)], gated=True)
    # It will not notice by itself.
    runner = bench.runner(engine, limits=AttemptLimits(silence_s=30), lease_renew_s=30)
    run = asyncio.create_task(runner.run(entry.job_id, entry.ack_subject))
    engine.advance()

    async def has_stored() -> bool:
        return bool((await bench.job(job_id)).images)

    await eventually(has_stored)
    await bench.writer.execute(Erase(), await bench.job(job_id))
    await bench.log.purge(job_id, keep=1)
    engine.advance()
    assert await run is RunOutcome.ENDED
    assert await bench.events(job_id) == [Erased]
    await eventually(bench.nothing_queued)


async def test_a_job_past_its_deadline_fails_and_says_so(bench: Bench) -> None:
    job_id = (await bench.submit(deadline_s=0.5)).id
    engine = ScriptedEngine([Progress(1, 2)], gated=True)
    assert await bench.run(engine) is RunOutcome.ENDED
    end = (await bench.job(job_id)).end
    assert end == Failed(message="Timed out: the job did not end within 0.5 s.", code="timeout")


async def test_an_engine_that_does_not_answer_is_killed_and_the_job_tried_again(
    bench: Bench,
) -> None:
    job_id = (await bench.submit()).id
    engine = ScriptedEngine([Progress(1, 2), Finished(0)], gated=True, silent=True)
    engine.advance()
    assert await bench.run(engine) is RunOutcome.RETRY
    assert engine.kills == 1
    job = await bench.job(job_id)
    assert job.last_failure == "The engine did not answer for 1 s."
    assert job.is_suspect


async def test_a_job_that_waits_for_its_turn_waits_as_long_as_the_engine_answers(
    bench: Bench,
) -> None:
    await bench.submit()
    engine = ScriptedEngine(pictures(1), gated=True, active=False)
    run = asyncio.create_task(bench.run(engine))
    done, _ = await asyncio.wait({run}, timeout=1.5 * QUICK.silence_s)
    assert not done
    engine.advance(10)
    assert await run is RunOutcome.COMPLETED
    assert engine.kills == 0


async def test_a_job_survives_a_restart_of_the_event_log(
    bench: Bench, nats_server: NatsServer
) -> None:
    job_id = (await bench.submit(images=1)).id
    engine = ScriptedEngine(pictures(1), gated=True)
    run = asyncio.create_task(bench.run(engine))
    await eventually(lambda: engine.requests)
    nats_server.stop()
    engine.advance(10)
    nats_server.start()
    assert await run is RunOutcome.COMPLETED
    assert isinstance((await bench.job(job_id)).end, Completed)
