"""A file of ComfyUI's editor is accepted as the graph that the editor would send."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from engine.graph.catalogue import Catalogue
from engine.graph.editor_file.conversion import prompt_of
from engine.graph.models_folder import ModelsFolder
from tests.support.edge import Client
from tests.support.generate_bodies import CHECKPOINT, workflow_body
from tests.support.patience import least_cpu_s

GENERATE = "/workflow/v1/generate"
SAMPLING = [8566257, "randomize", 4, 5.5, "euler", "normal", 1]
File = dict[str, Any]


def node(id: int, type: str, values: list[Any] | None = None, **links: int | None) -> File:
    """`links`: of its inputs."""
    inputs = [{"name": name, "type": "*", "link": link} for name, link in links.items()]
    values = list(values or ())
    return {"id": id, "type": type, "mode": 0, "inputs": inputs, "widgets_values": values}


def saved() -> File:
    """As version 0.4 of the format has it."""
    return {
        "last_node_id": 9,
        "version": 0.4,
        "nodes": [
            node(1, "Note", ["what this is about"]),
            node(3, "KSampler", SAMPLING, model=1, positive=2, negative=3, latent_image=4),
            node(4, "CheckpointLoaderSimple", [CHECKPOINT]),
            node(5, "EmptyLatentImage", [64, 64, 1]),
            node(6, "CLIPTextEncode", ["a cat"], clip=5),
            node(7, "CLIPTextEncode", [""], clip=6),
            node(8, "VAEDecode", samples=7, vae=8),
            node(9, "SaveImage", ["darkroom"], images=9),
        ],
        "links": [
            [1, 4, 0, 3, 0, "MODEL"],
            [2, 6, 0, 3, 1, "CONDITIONING"],
            [3, 7, 0, 3, 2, "CONDITIONING"],
            [4, 5, 0, 3, 3, "LATENT"],
            [5, 4, 1, 6, 0, "CLIP"],
            [6, 4, 1, 7, 0, "CLIP"],
            [7, 3, 0, 8, 0, "LATENT"],
            [8, 4, 2, 8, 1, "VAE"],
            [9, 8, 0, 9, 0, "IMAGE"],
        ],
    }


def of(file: File, id: int) -> File:
    found: File = next(each for each in file["nodes"] if each["id"] == id)
    return found


async def recorded(client: Client, body: File) -> File:
    answer = await client.post(GENERATE, json=body)
    assert answer.status_code == 202, answer.text
    job = (await client.get(f"/v1/jobs/{answer.json()['request_id']}")).json()
    prompt: File = job["request"]["prompt"]
    return prompt


async def test_a_file_becomes_the_graph_that_it_shows(client: Client) -> None:
    prompt = await recorded(client, saved())
    assert prompt.keys() == {"3", "4", "5", "6", "7", "8", "9"}
    assert prompt["3"]["inputs"] == {
        "model": ["4", 0],
        "positive": ["6", 0],
        "negative": ["7", 0],
        "latent_image": ["5", 0],
        "seed": 8566257,
        "steps": 4,
        "cfg": 5.5,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1,
    }


async def test_the_graph_has_what_was_chosen_and_a_graph_keeps_its_texts(client: Client) -> None:
    file = saved()
    of(file, 6)["widgets_values"] = ["a {cat|dog}"]
    of(file, 9)["widgets_values"] = ["%KSampler.steps%"]
    prompt = await recorded(client, file)
    assert prompt["6"]["inputs"]["text"] in {"a cat", "a dog"}
    assert prompt["9"]["inputs"]["filename_prefix"] == "4"
    again = workflow_body()["prompt"]
    again["6"]["inputs"]["text"] = "a {cat|dog}"
    again["9"]["inputs"]["filename_prefix"] = "%KSampler.steps%"
    kept = await recorded(client, again)
    assert [kept["6"]["inputs"]["text"], kept["9"]["inputs"]["filename_prefix"]] == [
        "a {cat|dog}",
        "%KSampler.steps%",
    ]


async def test_the_bare_file_of_a_graph_is_taken_too(client: Client) -> None:
    prompt = workflow_body()["prompt"]
    assert (await recorded(client, prompt)).keys() == prompt.keys()


async def test_it_may_be_under_prompt_and_of_version_1(client: Client) -> None:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    newer = saved()
    newer["links"] = [dict(zip(names, link, strict=True)) for link in newer["links"]]
    of(newer, 5)["widgets_values"] = {"width": 64, "height": 64, "batch_size": 1}
    assert await recorded(client, {"prompt": newer, "client_id": "a"}) == (
        await recorded(client, saved())
    )


async def test_reroutes_and_primitives_are_seen_through(client: Client) -> None:
    file = saved()
    file["nodes"] += [
        node(20, "Reroute", None, **{"": 31}),
        node(21, "Reroute", None, **{"": 1}),
        node(22, "PrimitiveNode", [7, "fixed"]),
    ]
    sampler = of(file, 3)
    sampler["inputs"][0]["link"] = 30
    sampler["inputs"].append({"name": "steps", "type": "INT", "link": 32})
    file["links"] += [[30, 20, 0, 3, 0, "*"], [31, 21, 0, 20, 0, "*"], [32, 22, 0, 3, 4, "INT"]]
    inputs = (await recorded(client, file))["3"]["inputs"]
    assert (inputs["model"], inputs["steps"]) == (["4", 0], 7)


def test_the_button_beside_a_file_is_no_input(tmp_path: Path) -> None:
    loads = node(1, "LoadImageMask", ["cat.png", "alpha", "image"], image=None, upload=None)
    declared = Catalogue(ModelsFolder(tmp_path)).declaration
    prompt = prompt_of({"nodes": [loads], "links": []}, declared)
    assert prompt["1"]["inputs"] == {"image": "cat.png", "channel": "alpha"}


LINKED = {"inputs": [{"name": "images", "type": "*", "link": 50}]}
CIRCLE = [node(20, "Reroute", None, **{"": 40}), node(21, "Reroute", None, **{"": 41})]
CIRCLE_LINKS = [[40, 21, 0, 20, 0, "*"], [41, 20, 0, 21, 0, "*"], [50, 20, 0, 9, 0, "*"]]
GETTER = node(22, "GetNode", ["picture"])
GETTER_LINKS = [[50, 22, 0, 9, 0, "*"]]
NO_SOURCE = "a link to node 9 (SaveImage) has no source"
NO_SETTER = "no node sets the variable that node 22 (GetNode) gets"
NO_NODE = "nodes.8 is not in the form that the editor writes"
UNCERTAIN = {
    "link from nowhere": (9, LINKED, [], [], NO_SOURCE),
    "reroutes in a circle": (9, LINKED, CIRCLE, CIRCLE_LINKS, NO_SOURCE),
    "no setter": (9, LINKED, [GETTER], GETTER_LINKS, NO_SETTER),
    "no nodes": (9, {}, [7] * 50_000, [], NO_NODE),
}
"""Members of a node that are changed, nodes and links that are added, and what is told."""


@pytest.mark.parametrize(
    ("id", "changed", "nodes", "links", "why"), UNCERTAIN.values(), ids=UNCERTAIN
)
async def test_what_is_not_certain_is_told_in_words(
    client: Client, id: int, changed: File, nodes: list[Any], links: list[Any], why: str
) -> None:
    file = saved()
    of(file, id).update(changed)
    file["nodes"] += nodes
    file["links"] += links
    answer = await client.post(GENERATE, json=file)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "no_prompt")
    assert error["details"].startswith(why)
    assert 'Save the workflow in the editor with "Save (API Format)"' in error["details"]


async def error_of(client: Client, file: File, node_id: str) -> str:
    answer = await client.post(GENERATE, json=file)
    error: str = answer.json()["node_errors"][node_id]["errors"][0]["type"]
    return error


async def test_a_value_that_does_not_fit_is_an_error_of_its_node(client: Client) -> None:
    file = saved()
    of(file, 3)["widgets_values"][2] = "many"
    assert await error_of(client, file, "3") == "invalid_input_type"


async def test_a_list_is_no_link(client: Client) -> None:
    file = saved()
    of(file, 9)["inputs"].append({"name": "filename_prefix", "type": "STRING", "link": 50})
    file["nodes"].append(node(22, "PrimitiveNode", [["8", 0]]))
    file["links"].append([50, 22, 0, 9, 1, "STRING"])
    assert await error_of(client, file, "9") == "invalid_input_type"


async def test_an_input_from_a_muted_node_is_missing(client: Client) -> None:
    file = saved()
    of(file, 6)["mode"] = 2
    assert await error_of(client, file, "3") == "required_input_missing"


async def test_an_unknown_node_is_named_with_what_may_run_it(client: Client) -> None:
    file = saved()
    of(file, 6)["type"] = "NodeOfAPack"
    error = (await client.post(GENERATE, json=file)).json()["error"]
    assert error["type"] == "missing_node_type"
    assert error["details"].startswith("node 6: NodeOfAPack; an endpoint with the engine `comfyui`")


def test_numbers_with_one_hash_take_no_longer_than_others(tmp_path: Path) -> None:
    ids = [number * sys.hash_info.modulus for number in range(10_000)]
    nodes = [{"id": each, "type": "Reroute"} for each in ids]
    declared = Catalogue(ModelsFolder(tmp_path)).declaration
    assert prompt_of({"nodes": nodes, "links": []}, declared) == {}
    took_s = least_cpu_s(lambda: prompt_of({"nodes": nodes, "links": []}, declared))
    assert took_s < 0.4  # meant to be under 50 ms
