import os
from pathlib import Path

from events.store.records import Endpoint
from tests.support.edge import Client, Edge
from tests.support.engine.special_files import make_special_files
from tests.support.generate_bodies import CHECKPOINT, diffusion_body


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


_KINDS = ("checkpoints", "loras", "vae", "embeddings", "hypernetworks", "upscale_models", "clip")
_LISTS = (
    "/v1/models",
    "/v1/object_info",
    "/models/loras",
    "/models/a%00b",
    "/models/..%5C..",
    *(f"/sdapi/v1/{each}" for each in ("sd-models", "sd-vae", "loras", "embeddings", "upscalers")),
    *(f"/sdapi/v1/{each}" for each in ("hypernetworks", "realesrgan-models", "prompt-styles")),
)


async def test_pipes_devices_and_links_in_circles_hide_no_model(
    client: Client, tmp_path: Path
) -> None:
    for kind in _KINDS:
        special = make_special_files(tmp_path / "models" / kind)
    os.mkfifo(tmp_path / "models" / "styles.csv")
    for path in _LISTS:
        answer = await client.get(path)
        assert answer.status_code in ((404,) if "%" in path else (200,)), (path, answer.text)
    assert CHECKPOINT in (await client.get("/sdapi/v1/sd-models")).text
    for name in special:
        for change in (
            {"override_settings": {"sd_model_checkpoint": name}},
            {"override_settings": {"sd_model_checkpoint": "0" * 10}},
            {"override_settings": {"sd_vae": name}},
            {"prompt": f"<lora:{name}:1>"},
            {"prompt": f"<hypernet:{name}:1>"},
        ):
            answer = await client.post("/diffusion/v1/check", json=diffusion_body(**change))
            assert answer.status_code in {200, 400}, (change, answer.text)
    assert (await client.post("/diffusion/v1/check", json=diffusion_body())).status_code == 200
