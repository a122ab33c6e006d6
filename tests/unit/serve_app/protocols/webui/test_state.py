"""What runs, lists and options of the WebUI's API."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from engine.webui.parameters import parse_parameters
from events.job_progress import JobProgress
from tests.support.edge import Client, Edge, submit
from tests.support.generate_bodies import CHECKPOINT

IDLE = {"progress": 0.0, "job_count": 0, "job": "", "current_image": None}


async def told(client: Client, query: str = "") -> dict[str, Any]:
    answer = await client.get(f"/sdapi/v1/progress{query}")
    assert answer.status_code == 200
    found = answer.json()
    return {name: found.get(name, found["state"].get(name)) for name in IDLE}


def hear(edge: Edge, job_id: str, progress: JobProgress) -> None:
    edge.progress[job_id] = replace(progress, preview=None)
    for listener in edge.services.backends.progress.listeners:
        listener(job_id, progress)


async def test_progress_is_that_of_the_job_that_runs(edge: Edge, client: Client) -> None:
    assert await told(client) == IDLE
    job_id = await submit(client)
    await submit(client)
    await edge.start(job_id)
    await edge.project()
    hear(edge, job_id, JobProgress(5, 20, preview=b"jpeg"))
    found = await told(client)
    assert (found["progress"], found["job_count"], found["job"]) == (0.25, 2, job_id)
    assert base64.b64decode(found["current_image"]) == b"jpeg"
    assert (await told(client, "?skip_current_image=true"))["current_image"] is None
    await edge.store_image(job_id)
    await edge.complete(job_id)
    await edge.project()
    assert (await told(client))["job_count"] == 1


async def test_interrupt_ends_what_runs_and_leaves_what_waits(edge: Edge, client: Client) -> None:
    running, waiting = await submit(client), await submit(client)
    await edge.start(running)
    await edge.project()
    assert (await client.post("/sdapi/v1/interrupt")).json() == {}
    assert (await edge.job(running)).cancel_requested
    assert (await edge.job(waiting)).end is None


async def test_where_nothing_runs_the_oldest_that_waits_is_ended(
    edge: Edge, client: Client
) -> None:
    assert (await client.post("/sdapi/v1/interrupt")).status_code == 200
    first, second = await submit(client), await submit(client)
    await edge.project()
    await client.post("/sdapi/v1/interrupt")
    assert (await edge.job(first)).end is not None
    assert (await edge.job(second)).end is None


async def test_a_job_of_several_images_is_not_skipped_in_part(edge: Edge, client: Client) -> None:
    for images, status in ((2, 400), (1, 200)):
        job_id = await submit(client, batch_size=images)
        await edge.start(job_id)
        await edge.project()
        assert (await client.post("/sdapi/v1/skip")).status_code == status
        assert (await edge.job(job_id)).cancel_requested == (images == 1)
        await client.post("/sdapi/v1/interrupt")
        await edge.store_image(job_id)
        await edge.project()
        await client.delete(f"/v1/jobs/{job_id}")
        await edge.project()


async def test_nobody_sees_or_ends_what_another_key_runs(edge: Edge, client: Client) -> None:
    job_id = await submit(client)
    await edge.start(job_id)
    await edge.project()
    hear(edge, job_id, JobProgress(5, 20, preview=b"jpeg"))
    for owner in ("bob", "alice"):
        async with await edge.client(owner) as other:
            assert await told(other) == IDLE
            await other.post("/sdapi/v1/interrupt")
            await other.post("/sdapi/v1/skip")
    assert not (await edge.job(job_id)).cancel_requested


async def got(client: Client, path: str) -> Any:
    answer = await client.get(f"/sdapi/v1/{path}")
    assert answer.status_code == 200, path
    return answer.json()


async def test_samplers_and_schedulers_are_listed_as_they_are_taken(client: Client) -> None:
    samplers, schedulers = await got(client, "samplers"), await got(client, "schedulers")
    assert {"Euler a", "DPM++ 2M", "Restart"} <= {each["name"] for each in samplers}
    assert {"automatic", "karras"} <= {each["name"] for each in schedulers}
    bodies = [{"sampler_name": each["name"]} for each in samplers]
    bodies += [{"scheduler": each["name"]} for each in schedulers]
    for body in bodies:
        parse_parameters(body, "webui")


async def test_models_are_named_as_requests_name_them(client: Client) -> None:
    [model] = await got(client, "sd-models")
    assert model["title"] == CHECKPOINT
    settings = {"sd_model_checkpoint": model["title"]}
    body = {"prompt": "x", "override_settings": settings}
    assert (await client.post("/diffusion/v1/check", json=body)).status_code == 200
    assert (await got(client, "options"))["sd_model_checkpoint"] == CHECKPOINT


async def test_latent_modes_are_beside_the_other_upscalers(client: Client) -> None:
    upscalers = {each["name"] for each in await got(client, "upscalers")}
    modes = {each["name"] for each in await got(client, "latent-upscale-modes")}
    assert {"None", "Lanczos", "Nearest"} <= upscalers
    assert "Latent (bicubic)" in modes
    assert not upscalers & modes


async def test_the_other_lists_have_their_form(client: Client) -> None:
    lists = ("sd-vae", "loras", "hypernetworks", "prompt-styles", "script-info", "face-restorers")
    for path in lists:
        assert isinstance(await got(client, path), list), path
    for path in ("embeddings", "scripts", "cmd-flags", "memory"):
        assert isinstance(await got(client, path), dict), path


async def test_options_take_what_holds_anyway_and_say_where_the_rest_belongs(
    client: Client,
) -> None:
    options = await got(client, "options")
    assert (await client.post("/sdapi/v1/options", json=options)).status_code == 200
    neutral = {"samples_save": True, "sd_model_checkpoint": CHECKPOINT, "randn_source": "GPU"}
    neutral |= {"sd_hypernetwork": "None", "x": None, "y": False, "z": []}
    assert (await client.post("/sdapi/v1/options", json=neutral)).status_code == 200
    asked = {"s_churn": 2, "x" * 10_000: 1, "samples_format": "jpg"}
    answer = await client.post("/sdapi/v1/options", json=asked)
    assert answer.status_code == 400
    assert "s_churn: send the option with each request" in answer.json()["detail"]
    assert len(answer.text) < 1000
    assert (await client.post("/sdapi/v1/options", json=[])).status_code == 400


async def test_an_option_that_no_request_may_have_is_not_kept(client: Client) -> None:
    before = await got(client, "options")
    for name, value, status in (
        ("sd_model_checkpoint", "nothing", 400),
        ("sd_model_checkpoint", "x" * 2000, 422),
        ("CLIP_stop_at_last_layers", "two", 422),
        ("sd_vae", ["a"], 422),
    ):
        answer = await client.post("/sdapi/v1/options", json={name: value})
        assert answer.status_code == status, answer.text
        assert await got(client, "options") == before


async def test_a_call_without_a_key_is_refused_in_the_form_of_the_webui(anyone: Client) -> None:
    answer = await anyone.get("/sdapi/v1/samplers")
    assert answer.status_code == 401
    assert isinstance(answer.json()["detail"], str)
