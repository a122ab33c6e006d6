"""Lists and settings of the WebUI's API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.webui.parameters import parse_parameters
from tests.support.edge import Edge
from tests.support.generate_bodies import CHECKPOINT


async def got(client: httpx.AsyncClient, path: str) -> Any:
    answer = await client.get(f"/sdapi/v1/{path}")
    assert answer.status_code == 200, path
    return answer.json()


async def test_samplers_and_schedulers_are_listed_as_they_are_taken(
    client: httpx.AsyncClient,
) -> None:
    samplers, schedulers = await got(client, "samplers"), await got(client, "schedulers")
    assert {"Euler a", "DPM++ 2M", "Restart"} <= {each["name"] for each in samplers}
    assert {"automatic", "karras"} <= {each["name"] for each in schedulers}
    bodies = [{"sampler_name": each["name"]} for each in samplers]
    bodies += [{"scheduler": each["name"]} for each in schedulers]
    for body in bodies:
        parse_parameters(body, "webui")


async def test_models_are_named_as_requests_name_them(client: httpx.AsyncClient) -> None:
    [model] = await got(client, "sd-models")
    assert model["title"] == CHECKPOINT
    settings = {"sd_model_checkpoint": model["title"]}
    body = {"prompt": "x", "override_settings": settings}
    assert (await client.post("/diffusion/v1/check", json=body)).status_code == 200
    assert (await got(client, "options"))["sd_model_checkpoint"] == CHECKPOINT


async def test_latent_modes_are_beside_the_other_upscalers(client: httpx.AsyncClient) -> None:
    upscalers = {each["name"] for each in await got(client, "upscalers")}
    modes = {each["name"] for each in await got(client, "latent-upscale-modes")}
    assert {"None", "Lanczos", "Nearest"} <= upscalers
    assert "Latent (bicubic)" in modes
    assert not upscalers & modes


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("sd-vae", list),
        ("loras", list),
        ("hypernetworks", list),
        ("prompt-styles", list),
        ("script-info", list),
        ("face-restorers", list),
        ("embeddings", dict),
        ("scripts", dict),
        ("cmd-flags", dict),
        ("memory", dict),
    ],
)
async def test_the_other_lists_have_their_form(
    client: httpx.AsyncClient, path: str, kind: type
) -> None:
    assert isinstance(await got(client, path), kind)


async def test_options_take_what_holds_anyway_and_say_where_the_rest_belongs(
    client: httpx.AsyncClient,
) -> None:
    options = await got(client, "options")
    assert (await client.post("/sdapi/v1/options", json=options)).status_code == 200
    neutral = {"samples_save": True, "sd_model_checkpoint": CHECKPOINT, "randn_source": "CPU"}
    assert (await client.post("/sdapi/v1/options", json=neutral)).status_code == 200
    asked = {"s_churn": 2, "x" * 10_000: 1, "randn_source": "GPU"}
    answer = await client.post("/sdapi/v1/options", json=asked)
    assert answer.status_code == 400
    assert "s_churn: send it with each request" in answer.json()["detail"]
    assert len(answer.text) < 1000
    assert (await client.post("/sdapi/v1/options", json=[])).status_code == 400


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"sd_model_checkpoint": "nothing"}, 400),
        ({"sd_model_checkpoint": "x" * 2000}, 422),
        ({"CLIP_stop_at_last_layers": "two"}, 422),
        ({"sd_vae": ["a"]}, 422),
    ],
)
async def test_an_option_that_no_request_may_have_is_not_kept(
    client: httpx.AsyncClient, asked: dict[str, Any], status: int
) -> None:
    before = await got(client, "options")
    assert (await client.post("/sdapi/v1/options", json=asked)).status_code == status
    assert await got(client, "options") == before


async def test_refreshing_is_done_by_itself(client: httpx.AsyncClient) -> None:
    assert (await client.post("/sdapi/v1/refresh-checkpoints")).status_code == 200
    assert (await client.post("/sdapi/v1/unload-checkpoint")).status_code == 400


async def test_a_switch_turns_all_of_it_off(edge: Edge) -> None:
    async with edge.client_with(None) as anyone:
        answer = await anyone.get("/sdapi/v1/samplers")
    assert answer.status_code == 401
    assert isinstance(answer.json()["detail"], str)
