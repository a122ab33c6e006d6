"""The main job, as a caller sees it: submit, result, picture, callback, events, erasure."""

from __future__ import annotations

import asyncio
import io
import json
import re
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from safetensors.numpy import load_file, save_file

from examples.receiver import Receiver
from tests.support.generate_bodies import diffusion_body
from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion, workflow
from tests.support.subscriber import subscription

pytestmark = pytest.mark.timeout(1200)

DOCUMENT_DIFFUSION = diffusion_body(
    sd_model_checkpoint=CHECKPOINT,
    width=64,
    height=64,
    sampler_name="DPM++ 2M",
    scheduler="Karras",
    steps=6,
    batch_size=2,
    override_settings={"sd_model_checkpoint": CHECKPOINT},
)


@pytest.mark.parametrize(
    ("flavour", "body", "images"),
    [("workflow", workflow(), 1), ("diffusion", DOCUMENT_DIFFUSION, 2)],
)
def test_a_body_of_the_service_document_gives_pictures_and_an_equal_callback(
    service: Service, receiver: Receiver, flavour: str, body: dict[str, object], images: int
) -> None:
    answer = service.http.post(
        f"/{flavour}/v1/generate", json=body, params={"callback_url": receiver.url}
    )
    assert answer.status_code == 202, answer.text
    accepted = answer.json()
    assert accepted["status"] == 0
    # The same id is readable at once.
    assert service.result(accepted["request_id"], flavour)["request_id"] == accepted["request_id"]
    result = service.ended(accepted["request_id"], flavour)
    assert result["status"] == 1, result
    assert json.loads(receiver.bodies.get(timeout=20)) == result
    assert [item["status"] for item in result["results"]] == [1] * images
    for item in result["results"]:
        image = picture(service, item)
        assert (image.width, image.height, image.mode) == (64, 64, "RGB")
        assert json.loads(image.info["prompt"])


def picture(service: Service, item: dict[str, str]) -> Image.Image:
    return Image.open(io.BytesIO(service.http.get(item["url"]).content))


def made(service: Service, flavour: str, body: dict[str, object]) -> tuple[int, bytes]:
    """Return the seed and the pixels of a new job's first image."""
    item = service.ended(service.submit(flavour, body), flavour)["results"][0]
    return item["seed"], picture(service, item).tobytes()


def test_a_drawn_seed_is_recorded_and_repeats_the_picture(service: Service) -> None:
    seed, drawn = made(service, "diffusion", diffusion(seed=-1))
    assert made(service, "diffusion", diffusion(seed=seed)) == (seed, drawn)
    assert made(service, "diffusion", diffusion(seed=seed + 1))[1] != drawn


def test_both_flavours_give_the_same_pixels(service: Service) -> None:
    graph = workflow(steps=4, seed=7)
    graph["prompt"]["6"]["inputs"]["text"] = "a red circle"
    _, flat = made(service, "diffusion", diffusion(compatibility="comfyui"))
    _, nodes = made(service, "workflow", graph)
    assert flat == nodes


def test_a_text_is_a_result_also_in_comfyuis_history(service: Service) -> None:
    text = {"class_type": "PrimitiveString", "inputs": {"value": "größe"}}
    shown = {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}
    request_id = service.submit("workflow", {"prompt": {"1": text, "2": shown}})
    result = service.ended(request_id, "workflow")
    (item,) = result["results"]
    assert (item["kind"], item["text"], item["status"]) == ("text", "größe", 1)
    assert service.http.get(item["url"]).content.decode() == "größe"
    history = service.http.get(f"/api/history/{request_id}").json()[request_id]
    assert history["outputs"] == {"2": {"text": ["größe"]}}


def test_a_failed_job_says_why_in_result_and_callback(service: Service, receiver: Receiver) -> None:
    # The file can be read when the job is accepted, but no model can be made from it.
    models = Path(service.environment["DARKROOM_MODELS_DIR"]) / "checkpoints"
    broken = models / "darkroom-tiny-broken.safetensors"
    tensors = load_file(models / CHECKPOINT)
    save_file(tensors | {"model.diffusion_model.out.2.weight": np.zeros(1, np.float32)}, broken)
    request = {
        "json": diffusion(sd_model_checkpoint=broken.name),
        "params": {"callback_url": receiver.url},
    }

    def accepted() -> str | None:
        """The HTTP edge re-reads the models folder every few seconds."""
        answer = service.http.post("/diffusion/v1/generate", **request)
        return str(answer.json()["request_id"]) if answer.status_code == 202 else None

    try:
        result = service.ended(asyncio.run(eventually(accepted)))
    finally:
        broken.unlink()
    assert json.loads(receiver.bodies.get(timeout=20)) == result
    assert result["status"] == 2
    assert broken.name in result["message"]
    assert [item["status"] for item in result["results"]] == [2]


async def test_a_subscriber_sees_each_stored_event_once_and_none_that_was_refused(
    service: Service,
) -> None:
    async with subscription(service.reader_url) as received:
        submit = partial(asyncio.to_thread, service.submit, "diffusion")
        ids = await asyncio.gather(*(submit(diffusion(seed=n)) for n in range(4)))
        # Two requests race under one key: one append is refused by the log.
        await asyncio.gather(*(submit(diffusion(), idempotency_key="race-1") for _ in range(6)))
        for job_id in ids:
            await asyncio.to_thread(service.ended, job_id)
        await eventually(lambda: sum(e["type"].endswith("completed.v1") for e in received) >= 5)
        by_job: dict[str, list[dict[str, object]]] = {}
        for event in received:
            by_job.setdefault(str(event["subject"]), []).append(event)
        assert set(ids) < set(by_job)
        for job_id, seen in by_job.items():
            assert seen == await asyncio.to_thread(service.events, job_id)
            assert [e["specversion"] for e in seen] == ["1.0"] * len(seen)


def test_a_job_that_waits_is_cancelled_at_once_and_one_that_runs_soon(service: Service) -> None:
    ids = [service.submit("diffusion", diffusion(steps=60, seed=n, batch_size=4)) for n in range(8)]
    for job_id in ids:
        answer = service.http.post(f"/v1/jobs/{job_id}/cancel")
        assert answer.json() == {"cancelled": True}
    results = [service.ended(job_id) for job_id in ids]
    assert {result["status"] for result in results} == {2}
    assert all("cancelled" in result["message"] for result in results)
    again = service.http.post(f"/v1/jobs/{ids[0]}/cancel")
    assert again.json() == {"cancelled": True}
    done = service.submit("diffusion", diffusion(steps=1))
    service.ended(done)
    late = service.http.post(f"/v1/jobs/{done}/cancel")
    assert late.json() == {"cancelled": False}


def test_the_command_line_runs_a_job_and_saves_its_picture(
    service: Service, tmp_path: Path
) -> None:
    output = service.command("generate", "a red circle", "--steps", "2", "--out", str(tmp_path))
    assert '"status": 1' in output.stdout
    (saved,) = tmp_path.glob("*.png")
    request_id = saved.name.split("_")[0]
    assert request_id in service.command("result", request_id, "--out", str(tmp_path)).stdout


def test_secrets_on_disk_are_the_owners_alone(service: Service) -> None:
    for name in ("admin.key", "admin.whsec", "secret", "nats/credentials.json", "nats/reader.url"):
        assert (service.data_dir / name).stat().st_mode & 0o077 == 0, name


def test_the_doctor_finds_nothing_that_does_not_work(service: Service) -> None:
    service.ended(service.submit("diffusion", diffusion()))  # so a worker is ready
    findings = json.loads(service.command("doctor", "--json", check=False).stdout)["findings"]
    assert [each for each in findings if each["level"] == "error"] == []
    levels = {each["part"]: each["level"] for each in findings}
    parts = ("ports", "event log", "database", "image store", "models", "Ray", "endpoints")
    assert {part: levels[part] for part in parts} == dict.fromkeys(parts, "ok")


def test_a_job_is_watched_from_its_submission_to_its_end(service: Service) -> None:
    job_id = service.submit("diffusion", diffusion(steps=30, batch_size=2))
    told = list(service.followed(f"/v1/jobs/{job_id}/events"))
    names = [each.event for each in told]
    stored = [name for name in names if name not in {"progress", "queued"}]
    assert stored == ["submitted", "started", "image_stored", "image_stored", "completed"]
    assert "progress" in names
    end = told[-1].json()
    assert (end["subject"], end["data"]["images"]) == (job_id, 2)


def test_a_job_that_has_ended_is_erased(service: Service) -> None:
    job_id = service.submit("diffusion", diffusion(), idempotency_key="erase-1")
    [image] = service.ended(job_id)["results"]
    whole = service.http.get(image["url"])
    part = service.http.get(image["url"], headers={"Range": "bytes=0-7"})
    assert (part.status_code, part.content) == (206, whole.content[:8])

    assert service.http.delete(f"/v1/jobs/{job_id}").json() == {"erased": True}
    result = {"request_id": job_id}
    assert service.http.get("/diffusion/v1/result", params=result).status_code == 404
    assert service.http.get(f"/v1/jobs/{job_id}").status_code == 404
    assert service.http.get(image["url"]).status_code == 404
    assert service.event_names(job_id) == ["erased"]
    assert not (service.data_dir / "images" / job_id).exists()
    again = service.http.post(
        "/diffusion/v1/generate", json=diffusion(), headers={"Idempotency-Key": "erase-1"}
    )
    assert again.status_code == 409
    assert service.http.delete(f"/v1/jobs/{job_id}").json() == {"erased": True}


def test_a_job_that_runs_is_erased_and_makes_room(service: Service) -> None:
    ids = [service.submit("diffusion", diffusion(steps=150, seed=seed)) for seed in range(3)]
    asyncio.run(eventually(lambda: "started_at" in service.result(ids[0])))
    for job_id in ids:
        assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 200
        assert service.event_names(job_id) == ["erased"]
    assert service.ended(service.submit("diffusion", diffusion()))["status"] == 1
    assert [service.event_names(job_id) for job_id in ids] == [["erased"]] * 3


async def test_the_log_file_shows_a_job_from_its_request_to_its_end(service: Service) -> None:
    answer = service.http.post(
        "/diffusion/v1/generate", json=diffusion(), headers={"X-Request-ID": "order-7"}
    )
    job_id = answer.json()["request_id"]
    assert answer.headers["X-Request-ID"] == "order-7"
    named = re.search(r"^Log +(\S+);", service.output, re.MULTILINE)
    assert named is not None
    path = Path(named[1])
    assert path == service.data_dir / "logs" / "darkroom.log"
    assert path.stat().st_mode & 0o077 == 0

    def actions() -> list[str]:
        lines = [line for line in path.read_text().splitlines() if f"job_id={job_id}" in line]
        return [each for line in lines for each in re.findall(r"action=(accept|start|end)\b", line)]

    await eventually(lambda: sorted(actions()) == ["accept", "end", "start"])
    accepted = next(
        line for line in path.read_text().splitlines() if f"accept job_id={job_id}" in line
    )
    assert "x_request_id=order-7" in accepted


def test_nothing_listens_where_another_machine_could_reach_it(service: Service) -> None:
    assert service.ended(service.submit("diffusion", diffusion()))["status"] == 1  # all parts run
    started = psutil.Process(service.pid)
    listening = {
        (process.name(), connection.laddr.ip)
        for process in [started, *started.children(recursive=True)]
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert "ray::ServeReplica:darkroom:Api" in {name for name, _ in listening}
    assert {each for each in listening if not _is_loopback(each[1])} == set()


def _is_loopback(text: str) -> bool:
    address = ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
