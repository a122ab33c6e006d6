import httpx
import pytest

from events.log import utc_now
from events.store.records import Endpoint, KeyLimits, Scope
from serve_app.access.api_keys import mint
from tests.support.edge import Edge
from tests.support.generate_bodies import CHECKPOINT


async def test_models_are_those_of_the_folder(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/models")
    # An empty file tells no family.
    item = {"kind": "checkpoints", "name": CHECKPOINT, "family": None, "defaults": None}
    assert answer.json()["models"] == [item]


async def test_models_are_listed_for_openais_clients_too(edge: Edge) -> None:
    await edge.services.endpoints.put(Endpoint("bobs", owner="bob"))
    async with await edge.client("alice") as alice:
        answer = (await alice.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [each["id"] for each in answer["data"]] == ["default", CHECKPOINT]
    assert answer["data"][0]["object"] == "model"


async def test_samplers_and_schedulers_have_both_spellings(client: httpx.AsyncClient) -> None:
    samplers = (await client.get("/v1/samplers")).json()["samplers"]
    assert {"euler", "dpmpp_2m"} <= {each["name"] for each in samplers}
    assert {"Euler", "DPM++ 2M", "PLMS"} <= {each["label"] for each in samplers}
    schedulers = (await client.get("/v1/schedulers")).json()["schedulers"]
    assert {"normal", "karras"} <= {each["name"] for each in schedulers}


async def test_object_info_has_comfyuis_shape(client: httpx.AsyncClient) -> None:
    info = (await client.get("/v1/object_info")).json()
    loader = info["CheckpointLoaderSimple"]
    assert loader["input"]["required"]["ckpt_name"][0] == [CHECKPOINT]
    assert loader["output"] == ["MODEL", "CLIP", "VAE"]


async def test_health_says_whether_jobs_are_taken(edge: Edge) -> None:
    async with edge.client_with(None) as anyone:
        assert (await anyone.get("/health/ready")).json() == {"status": "ok"}
        edge.health.reason = "the event log is not connected"
        answer = await anyone.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json()["error"]["details"] == "the event log is not connected"
        assert (await anyone.get("/health/live")).status_code == 200


@pytest.mark.parametrize("path", ["models", "samplers", "schedulers", "object_info"])
async def test_a_request_takes_one_of_the_keys_rate(edge: Edge, path: str) -> None:
    text, key = mint(
        "alice",
        "test",
        [Scope.READ],
        created_at=utc_now(),
        limits=KeyLimits(rate_per_s=0.001, burst=1),
    )
    await edge.services.keys.add(key)
    async with edge.client_with(text) as client:
        answers = [(await client.get(f"/v1/{path}")).status_code for _ in range(2)]
    assert answers == [200, 429]
