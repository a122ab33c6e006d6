"""The main job, as a caller sees it: submit, result, picture, callback, events."""

from __future__ import annotations

import asyncio
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from events.ids import partition_of
from examples.receiver import Receiver
from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion, workflow
from tests.support.subscriber import subscription

pytestmark = pytest.mark.timeout(1200)

# ruff: noqa: E501 - graphs read best a node a line

# Both bodies use every field of the service document's tables, and nothing else.
DOCUMENT_WORKFLOW = {
    "prompt": {
        "3": {
            "class_type": "KSampler",
            "inputs": {
                "cfg": 8,
                "denoise": 1,
                "latent_image": ["5", 0],
                "model": ["4", 0],
                "negative": ["7", 0],
                "positive": ["6", 0],
                "sampler_name": "euler",
                "scheduler": "normal",
                "seed": 8566257,
                "steps": 6,
            },
        },
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": CHECKPOINT}},
        "5": {"class_type": "EmptyLatentImage", "inputs": {"batch_size": 1, "height": 64, "width": 64}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "a bottle"}},
        "7": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["4", 1], "text": "bad hands"}},
        "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
        "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]}},
    }
}  # fmt: skip
DOCUMENT_DIFFUSION = {
    "sd_model_checkpoint": CHECKPOINT,
    "prompt": "a bottle",
    "negative_prompt": "",
    "width": 64,
    "height": 64,
    "sampler_name": "DPM++ 2M",
    "scheduler": "Karras",
    "steps": 6,
    "cfg_scale": 7,
    "batch_size": 2,
    "clip_skip": 1,
    "seed": -1,
    "override_settings": {"sd_model_checkpoint": CHECKPOINT},
}


@pytest.mark.parametrize(
    ("flavour", "body", "images"),
    [("workflow", DOCUMENT_WORKFLOW, 1), ("diffusion", DOCUMENT_DIFFUSION, 2)],
)
def test_a_body_of_the_service_document_gives_pictures_and_an_equal_callback(
    service: Service, flavour: str, body: dict[str, object], images: int
) -> None:
    key, secret = service.command("keys", "create", "admin").stdout.split()
    with Receiver(secret) as receiver:
        answer = service.http.post(
            f"/{flavour}/v1/generate",
            json=body,
            params={"callback_url": receiver.url},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 202, answer.text
        accepted = answer.json()
        assert accepted["status"] == 0
        # The same id is readable at once.
        assert (
            service.result(accepted["request_id"], flavour)["request_id"] == accepted["request_id"]
        )
        result = service.ended(accepted["request_id"], flavour)
        called_back = json.loads(receiver.bodies.get(timeout=20))
    assert result["status"] == 1, result
    assert called_back == result
    assert [item["status"] for item in result["results"]] == [1] * images
    for item in result["results"]:
        picture = Image.open(io.BytesIO(service.http.get(item["url"]).content))
        assert (picture.width, picture.height, picture.mode) == (64, 64, "RGB")
        assert json.loads(picture.info["prompt"])


def test_a_drawn_seed_is_recorded_and_repeats_the_picture(service: Service) -> None:
    drawn = service.ended(service.submit("diffusion", diffusion(seed=-1)))["results"][0]
    again = service.ended(service.submit("diffusion", diffusion(seed=drawn["seed"])))["results"][0]
    other = service.ended(service.submit("diffusion", diffusion(seed=drawn["seed"] + 1)))[
        "results"
    ][0]

    def pixels(item: dict[str, str]) -> bytes:
        return Image.open(io.BytesIO(service.http.get(item["url"]).content)).tobytes()

    assert pixels(again) == pixels(drawn)
    assert pixels(other) != pixels(drawn)


def test_both_flavours_give_the_same_pixels(service: Service) -> None:
    graph = workflow(steps=4, seed=7)
    graph["prompt"]["6"]["inputs"]["text"] = "a red circle"
    flat = service.ended(service.submit("diffusion", diffusion(compatibility="comfyui")))[
        "results"
    ][0]
    nodes = service.ended(service.submit("workflow", graph), "workflow")["results"][0]
    pictures = [Image.open(io.BytesIO(service.http.get(i["url"]).content)) for i in (flat, nodes)]
    assert pictures[0].tobytes() == pictures[1].tobytes()


def test_many_jobs_at_once_all_end(service: Service) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda n: service.submit("diffusion", diffusion(seed=n)), range(12)))
    results = [service.ended(job_id) for job_id in ids]
    assert [result["status"] for result in results] == [1] * 12
    assert {result["request_id"] for result in results} == set(ids)


def test_the_same_idempotency_key_finds_the_same_job(service: Service) -> None:
    first = service.submit("diffusion", diffusion(), idempotency_key="order-1")
    assert service.submit("diffusion", diffusion(), idempotency_key="order-1") == first
    other = service.http.post(
        "/diffusion/v1/generate", json=diffusion(seed=8), headers={"Idempotency-Key": "order-1"}
    )
    assert other.status_code == 409
    assert service.ended(first)["status"] == 1
    assert service.event_names(first).count("submitted") == 1


def test_a_failed_job_says_why_in_result_and_callback(service: Service, tmp_path: Path) -> None:
    # The checkpoint is there when the job is accepted, and no model when it is loaded.
    models = Path(service.environment["DARKROOM_MODELS_DIR"]) / "checkpoints"
    broken = models / "darkroom-tiny-truncated.safetensors"
    broken.write_bytes((models / CHECKPOINT).read_bytes()[:1000])
    key, secret = service.command("keys", "create", "admin").stdout.split()
    try:
        with Receiver(secret) as receiver:
            answer = eventually_accepted(
                service, diffusion(sd_model_checkpoint=broken.name), receiver.url, key
            )
            result = service.ended(answer)
            assert json.loads(receiver.bodies.get(timeout=20)) == result
    finally:
        broken.unlink()
    assert result["status"] == 2
    assert broken.name in result["message"]
    assert [item["status"] for item in result["results"]] == [2]


def eventually_accepted(service: Service, body: dict[str, object], callback: str, key: str) -> str:
    """The HTTP edge re-reads the models folder every few seconds."""

    def submit() -> str | None:
        answer = service.http.post(
            "/diffusion/v1/generate",
            json=body,
            params={"callback_url": callback},
            headers={"Authorization": f"Bearer {key}"},
        )
        return str(answer.json()["request_id"]) if answer.status_code == 202 else None

    return asyncio.run(eventually(submit))


async def test_a_subscriber_sees_each_stored_event_once_and_none_that_was_refused(
    service: Service,
) -> None:
    async with subscription(service.reader_url) as received:
        ids = await asyncio.gather(
            *(asyncio.to_thread(service.submit, "diffusion", diffusion(seed=n)) for n in range(4))
        )
        # Two requests race under one key: one append is refused by the log.
        await asyncio.gather(
            *(
                asyncio.to_thread(
                    service.submit, "diffusion", diffusion(), idempotency_key="race-1"
                )
                for _ in range(6)
            )
        )
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


def test_the_reader_may_replay_and_may_not_publish(service: Service) -> None:
    """What else it may not do is tested in tests/integration/test_nats_server.py."""
    import nats

    job_id = service.submit("diffusion", diffusion(steps=1))
    service.ended(job_id)
    subject = f"jobs.{partition_of(job_id)}.{job_id}"

    async def replay_and_publish() -> tuple[dict[str, object], list[str]]:
        errors: list[str] = []

        async def note(error: Exception) -> None:
            errors.append(str(error))

        client = await nats.connect(service.reader_url, error_cb=note)
        last = await client.jetstream().get_last_msg("JOBS", subject, direct=True)
        await client.publish(subject, b"{}")
        await client.flush()
        await eventually(lambda: errors)
        await client.close()
        return json.loads(last.data or b""), errors

    last, errors = asyncio.run(replay_and_publish())
    assert last == service.events(job_id)[-1]
    assert "permissions violation" in errors[0]


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
    (picture,) = tmp_path.glob("*.png")
    request_id = picture.name.split("_")[0]
    assert request_id in service.command("result", request_id, "--out", str(tmp_path)).stdout


def test_a_revoked_key_stops_working(service: Service) -> None:
    key = service.command("keys", "create", "bob").stdout.split()[0]
    headers = {"Authorization": f"Bearer {key}"}
    assert service.http.get("/v1/jobs", headers=headers).json()["jobs"] == []
    service.command("keys", "revoke", key.split("_")[1])
    assert "revoked" in service.command("keys", "list").stdout

    def is_refused() -> bool:
        return service.http.get("/v1/jobs", headers=headers).status_code == 401

    asyncio.run(eventually(is_refused))


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
