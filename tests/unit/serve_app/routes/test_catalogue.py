from events.store.records import Endpoint
from tests.support.edge import Client, Edge
from tests.support.generate_bodies import CHECKPOINT


async def test_models_are_those_of_the_folder(client: Client) -> None:
    answer = await client.get("/v1/models")
    [item] = answer.json()["models"]
    assert (item["kind"], item["name"], item["family"]) == ("checkpoints", CHECKPOINT, "sd1")
    assert (item["defaults"]["width"], item["defaults"]["steps"]) == (512, None)


async def test_models_are_listed_for_openais_clients_too(edge: Edge, client: Client) -> None:
    await edge.services.endpoints.put(Endpoint("bobs", owner="bob"))
    answer = (await client.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [each["id"] for each in answer["data"]] == ["default", CHECKPOINT]
    assert answer["data"][0]["object"] == "model"


async def test_samplers_and_schedulers_have_both_spellings(client: Client) -> None:
    samplers = (await client.get("/v1/samplers")).json()["samplers"]
    assert {"euler", "dpmpp_2m"} <= {each["name"] for each in samplers}
    assert {"Euler", "DPM++ 2M", "PLMS"} <= {each["label"] for each in samplers}
    schedulers = (await client.get("/v1/schedulers")).json()["schedulers"]
    assert {"normal", "karras"} <= {each["name"] for each in schedulers}


async def test_object_info_has_comfyuis_shape(client: Client) -> None:
    info = (await client.get("/v1/object_info")).json()
    loader = info["CheckpointLoaderSimple"]
    assert loader["input"]["required"]["ckpt_name"][0] == [CHECKPOINT]
    assert loader["output"] == ["MODEL", "CLIP", "VAE"]


async def test_health_says_whether_jobs_are_taken(edge: Edge, anyone: Client) -> None:
    assert (await anyone.get("/health/ready")).json() == {"status": "ok"}
    edge.health.reason = "the event log is not connected"
    answer = await anyone.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json()["error"]["details"] == "the event log is not connected"
    assert (await anyone.get("/health/live")).status_code == 200
