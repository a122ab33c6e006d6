"""What a job may cost, and how long its texts may be."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.limits import Limits
from engine.graph.validation import require_text_budget
from events.store.records import Endpoint
from settings.graph import GraphSettings
from tests.support.edge import Client, Edge, refusal
from tests.support.engine.workflows import node
from tests.support.generate_bodies import diffusion_body, workflow_body
from tests.support.uploads import png, upload

WORKFLOW = "/api/v1/workflow/generate"
DIFFUSION = "/diffusion/v1/generate"
LONG = workflow_body(steps=10_000)
SMALL = 33.6
"""What `workflow_body` costs, rounded up."""


def test_limits_without_settings_are_those_of_the_defaults() -> None:
    assert Limits(**Endpoint("any").limits(GraphSettings())) == Limits()


def from_upload(factor: float) -> dict[str, Any]:
    """A workflow that loads an image and enlarges it."""
    larger = {"image": ["1", 0], "upscale_method": "bicubic", "scale_by": factor}
    return {
        "prompt": {
            "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
            "2": {"class_type": "ImageScaleBy", "inputs": larger},
            "3": {"class_type": "PreviewImage", "inputs": {"images": ["2", 0]}},
        }
    }


async def test_a_cost_is_answered_recorded_and_shown(edge: Edge, client: Client) -> None:
    accepted = (await client.post(WORKFLOW, json=workflow_body())).json()
    cost = accepted["cost"]
    assert cost["work"] == pytest.approx(SMALL, abs=0.1)
    assert (cost["rows"], cost["tokens"], cost["outputs"]) == (2, 77, 1)
    job_id = accepted["request_id"]
    recorded = (await edge.job(job_id)).submitted.cost
    assert recorded is not None
    assert recorded.model_dump() == cost
    assert (await client.get(f"/v1/jobs/{job_id}")).json()["cost"] == cost


@pytest.mark.parametrize(
    ("flavour", "body"), [("workflow", workflow_body()), ("diffusion", diffusion_body())]
)
async def test_what_a_job_would_cost_is_told_without_one(
    edge: Edge, client: Client, flavour: str, body: dict[str, Any]
) -> None:
    checked = await client.post(f"/{flavour}/v1/check", json=body)
    await edge.project()
    assert (checked.status_code, (await client.get("/v1/jobs")).json()["jobs"]) == (200, [])
    accepted = (await client.post(f"/{flavour}/v1/generate", json=body)).json()
    assert checked.json()["cost"] == accepted["cost"]
    images = len(accepted["results"]) if flavour == "diffusion" else 0
    assert checked.json()["images"] == images


async def test_a_workflow_beyond_a_limit_is_refused_and_so_is_its_check(client: Client) -> None:
    answer = await client.post(WORKFLOW, json=LONG)
    assert refusal(answer) == (400, "cost_too_high")
    details = answer.json()["error"]["details"]
    assert details.startswith("node 3 (KSampler): the job costs 5,96")
    assert "at most 2,000 are allowed; lower the steps" in details
    assert list(answer.json()["node_errors"]) == ["3"]
    checked = await client.post("/workflow/v1/check", json=LONG)
    assert (checked.status_code, checked.json()) == (400, answer.json())


async def test_a_check_takes_no_parameters(client: Client) -> None:
    query = {"callback_url": "https://example.com"}
    answer = await client.post("/workflow/v1/check", params=query, json=workflow_body())
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"steps": 150, "width": 1024, "height": 1024, "batch_size": 16}, "steps"),
        ({"prompt": "BREAK " * 1000}, "prompt"),
    ],
)
async def test_a_diffusion_request_beyond_a_limit_names_the_parameter(
    parameters: dict[str, Any], field: str, client: Client
) -> None:
    answer = await client.post(DIFFUSION, json=diffusion_body(**parameters))
    assert answer.status_code == 400
    (found,) = answer.json()["error"]["extra_info"]["fields"]
    assert (found["type"], found["field"]) == ("cost_too_high", field)
    assert "are allowed" in found["message"]


@pytest.mark.parametrize(
    ("of_endpoint", "of_key", "body", "status"),
    [
        (10.0, None, workflow_body(), 400),
        (6000.0, None, LONG, 202),
        (0.0, None, LONG, 202),
        (None, 10.0, workflow_body(), 400),
        (None, 0.0, workflow_body(), 202),
        (None, 1e9, workflow_body(), 202),
        (None, 1e9, LONG, 400),
    ],
)
async def test_an_endpoint_has_a_limit_of_its_own_and_a_key_a_lower_one(
    edge: Edge,
    of_endpoint: float | None,
    of_key: float | None,
    body: dict[str, Any],
    status: int,
) -> None:
    await edge.services.endpoints.put(Endpoint(id="default", max_cost=of_endpoint))
    async with await edge.client(max_cost=of_key) as client:
        assert (await client.post(WORKFLOW, json=body)).status_code == status


async def test_an_upload_costs_what_its_size_makes_it_cost(client: Client) -> None:
    await upload(client, "cat.png", data=png("red", size=(2000, 1000)))
    accepted = await client.post(WORKFLOW, json=from_upload(2.0))
    assert accepted.json()["cost"]["work"] == pytest.approx(2 * 4 + 8 * 1 + 8 * 4)
    answer = await client.post(WORKFLOW, json=from_upload(8.0))
    assert answer.status_code == 400
    assert answer.json()["error"]["details"].startswith(
        "node 2 (ImageScaleBy): at this node the job needs"
    )


def prompt_of(*texts: object) -> dict[str, object]:
    return {str(n): {"inputs": {"text": text, "steps": 20}} for n, text in enumerate(texts)}


def test_the_texts_of_all_nodes_share_one_budget() -> None:
    require_text_budget(prompt_of("abc", "de"), 5)
    with pytest.raises(GraphInvalid, match="6 characters, but at most 5"):
        require_text_budget(prompt_of("abc", "def"), 5)


@pytest.mark.parametrize("prompt", [None, [], {"1": None}, {"1": {"inputs": 5}}, prompt_of(None)])
def test_what_is_no_prompt_has_no_text(prompt: object) -> None:
    require_text_budget(prompt, 1)


async def test_what_all_images_say_of_themselves_has_a_bound(client: Client) -> None:
    images = {"0": node("EmptyImage", width=1, height=1, batch_size=16, color=0)}
    saved = {
        str(n): node("SaveImage", images=["0", 0], filename_prefix=chr(0x1F600) * 7500)
        for n in range(1, 17)
    }
    answer = await client.post(WORKFLOW, json={"prompt": images | saved})
    assert refusal(answer) == (400, "too_much_metadata")
    assert answer.json()["error"]["details"].startswith("256 images have 36")
    few = images | {"1": saved["1"]}
    assert (await client.post(WORKFLOW, json={"prompt": few})).status_code == 202


@pytest.mark.parametrize(
    "text",
    [
        node("PrimitiveString", value="a" * 32_000),
        node("ComfySwitchNode", switch=True, on_true="a" * 32_000, on_false=""),
    ],
    ids=["primitive", "switch"],
)
async def test_a_text_that_links_bring_counts_wherever_it_is_used(
    client: Client, text: dict[str, object]
) -> None:
    image = {"0": node("EmptyImage", width=1, height=1, batch_size=1, color=0), "t": text}
    saved = {
        f"{n}": node("SaveImage", images=["0", 0], filename_prefix=["t", 0]) for n in range(1, 41)
    }
    answer = await client.post(WORKFLOW, json={"prompt": image | saved})
    assert answer.status_code == 400
    details = "the texts have 1280000 characters, but at most 131072 are allowed"
    assert answer.json()["error"]["details"] == details
    few = image | {name: saved[name] for name in ("1", "2", "3", "4")}
    assert (await client.post(WORKFLOW, json={"prompt": few})).status_code == 202


async def test_ids_that_links_bring_count_wherever_they_are_used(client: Client) -> None:
    size = "\x01" * 128
    prompt = {
        "0": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
        size: node("GetImageSize", image=["0", 0]),
        "m": node("SolidMask", value=1.0, width=8, height=8),
        "s": node("ComfySwitchNode", switch=True, on_true=[size, 0], on_false=0),
        "i": node("MaskToImage", mask=["900", 0]),
        "o": node("SaveImage", images=["i", 0], filename_prefix=""),
    }
    sides = {side: ["s", 0] for side in ("left", "top", "right", "bottom")}
    prompt |= {
        f"{n}": node("FeatherMask", mask=[f"{n - 1}" if n > 1 else "m", 0], **sides)
        for n in range(1, 901)
    }
    answer = await client.post(WORKFLOW, json={"prompt": prompt})
    assert refusal(answer) == (400, "too_large")
