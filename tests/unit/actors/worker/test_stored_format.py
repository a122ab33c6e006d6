"""A job's images are stored in the format that it recorded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from actors.worker.attempt import AttemptLimits
from actors.worker.job import JobRunner, RunOutcome
from actors.worker.plan import planner
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.webui.infotext.exif import read_user_comment
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.wire.progress import JobProgress
from storage.images import ImageStore
from storage.keys import JPEG, WEBP
from tests.support.events import submitted
from tests.support.worker import LANE, ScriptedEngine, pictures

CHECKPOINT = "example.safetensors"


async def report(_job_id: str, _progress: JobProgress) -> None:
    pass


@pytest.mark.parametrize(
    ("image_format", "media_type", "suffix"),
    [("webp", WEBP, "webp"), ("jpeg", JPEG, "jpg"), (None, None, "png")],
)
async def test_an_image_is_stored_as_its_job_says(
    tmp_path: Path, image_format: str | None, media_type: str | None, suffix: str
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / CHECKPOINT).touch()
    log, queue, job_id = MemoryLog(), MemoryJobQueue(), new_id()
    request = {"prompt": "a red circle", "seed": 7}
    asked = submitted(
        lane=LANE,
        request=request,
        image_format=image_format,
        image_quality=80 if image_format else None,
    )
    await JobWriter(log).submit(job_id, Submit(asked))
    await queue.add("default", LANE, job_id)
    images = ImageStore((tmp_path / "images").as_uri())
    runner = JobRunner(
        actor="a",
        log=log,
        images=images,
        engine=ScriptedEngine(pictures(1)),
        plan=planner(Catalogue(ModelsFolder(tmp_path / "models")), Limits(), CHECKPOINT),
        report_progress=report,
        limits=AttemptLimits(silence_s=30),
        lease_renew_s=60,
        max_attempts=1,
        max_attempts_total=1,
        now=utc_now,
    )
    async with queue.reader("default", LANE) as lane:
        [entry] = await lane.next(most=1, timeout_s=5)
        assert await runner.run(entry) is RunOutcome.COMPLETED
    job = await JobWriter(log).load(job_id)
    assert job is not None
    [stored] = job.images
    assert (stored.media_type, stored.key.rpartition("/")[2]) == (media_type, f"0.{suffix}")
    made = Image.open(io.BytesIO(await images.get(stored.key)))
    said = made.info["parameters"] if media_type is None else read_user_comment(made)
    assert said is not None
    assert said.startswith("a red circle\nSteps: 20")
