"""Graphs on a real ComfyUI: its files of every medium, its cache, its errors and its pictures.

`COMFYUI_DIR` is an install with an interpreter of its own, or with the one in `COMFYUI_PYTHON`. The
pictures are compared if its models folder has the small checkpoint of the reference graphs.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image

from actors.worker.comfyui_engine import ComfyUIHost
from actors.worker.engine_process import RunEvent, RunRequest
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMark
from comfyui.client import ComfyUIClient
from comfyui.own_server import Install, OwnServer
from engine.interface import Errored, Finished, RunOptions
from tests.support.comfyui.standin_server import graph, node

DIR = os.environ.get("COMFYUI_DIR", "")
PARITY_DIR = os.environ.get("DARKROOM_PARITY_DIR", "")
CHECKPOINT = "sd15_small.safetensors"
CASES = (
    "area_two_overlapping",
    "deis__exponential",
    "dpmpp_2m__karras",
    "dpmpp_sde__simple",
    "euler__normal",
    "euler_ancestral__beta",
    "heun__karras",
    "lcm__ddim_uniform",
    "lms__sgm_uniform",
    "uni_pc__normal",
)
MOST_LEVELS = 1
"""Processors differ in the last bits of a sum, so a pixel may differ by one level of 255."""

pytestmark = [
    pytest.mark.skipif(not DIR, reason="COMFYUI_DIR names no install of ComfyUI"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
]


class Server:
    def __init__(self, process: OwnServer, client: ComfyUIClient) -> None:
        self.client = client
        self.host = ComfyUIHost(client, process)
        self.jobs = 0

    async def events(self, prompt: dict[str, Any], **files: bytes) -> list[RunEvent]:
        self.jobs += 1
        with RunMark.new() as mark:
            options = RunOptions(input_files=files)
            request = RunRequest(f"job-{self.jobs}", 1, prompt, mark.path, options)
            async with aclosing(self.host.run(request)) as events:
                return [each async for each in events]

    async def files(self, prompt: dict[str, Any], **files: bytes) -> list[FileReady]:
        events = await self.events(prompt, **files)
        assert isinstance(events[-1], Finished), events[-1]
        return [each for each in events if isinstance(each, FileReady)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    python = os.environ.get("COMFYUI_PYTHON")
    install = Install(Path(DIR), Path(python) if python else None)
    process = OwnServer(install, tmp_path_factory.mktemp("comfyui") / "server", on_cpu=True)
    client = await process.start()
    server = Server(process, client)
    yield server
    await server.host.close()
    await client.close()
    await process.close()


IMAGES = node("EmptyImage", width=64, height=48, batch_size=3, color=255)


async def test_files_of_every_medium_are_results(server: Server) -> None:
    prompt = graph(
        IMAGES,
        node("SaveImage", images=["1", 0], filename_prefix="folder/picture"),
        node("CreateVideo", images=["1", 0], fps=8),
        node("SaveVideo", video=["3", 0], filename_prefix="v", format="auto", codec="auto"),
        node("SaveWEBM", images=["1", 0], filename_prefix="w", codec="vp9", fps=8, crf=32),
        node(
            "SaveAnimatedWEBP",
            images=["1", 0],
            filename_prefix="a",
            fps=8,
            lossless=True,
            quality=80,
            method="default",
        ),
        node("PreviewAny", source=["1", 0]),
    )

    files = await server.files(prompt)

    assert [(each.node_id, each.media_type) for each in files] == [
        *[("2", "image/png")] * 3,
        ("4", "video/mp4"),
        ("5", "video/webm"),
        ("6", "image/webp"),
        ("7", "text/plain"),
    ]
    assert all(each.content for each in files)


async def test_a_graph_that_the_server_has_cached_writes_its_files_again(server: Server) -> None:
    save = node("SaveImage", images=["1", 0], filename_prefix="same")
    for last in (save, node("PreviewImage", images=["1", 0]), node("PreviewAny", source=["1", 0])):
        counts = [len(await server.files(graph(IMAGES, last))) for _ in range(3)]

        assert counts == [counts[0]] * 3
        assert counts[0] > 0


async def test_an_input_file_is_read_by_the_server(server: Server) -> None:
    file = io.BytesIO()
    Image.new("RGB", (40, 24), "blue").save(file, "PNG")
    prompt = graph(
        node("LoadImage", image="a"), node("SaveImage", images=["1", 0], filename_prefix="x")
    )

    [result] = await server.files(prompt, a=file.getvalue())

    with Image.open(io.BytesIO(result.content)) as image:
        assert (image.size, image.convert("RGB").getpixel((0, 0))) == ((40, 24), (0, 0, 255))


@pytest.mark.parametrize(
    "prompt",
    [
        graph(node("NoSuchNode")),
        graph(node("LoadImage", image="missing.png"), node("PreviewImage", images=["1", 0])),
        graph(IMAGES),
    ],
    ids=["unknown node", "missing file", "no output"],
)
async def test_a_graph_that_the_server_refuses_is_invalid(
    server: Server, prompt: dict[str, Any]
) -> None:
    [event] = await server.events(prompt)

    assert isinstance(event, Errored)
    assert event.error.code == "invalid_input"


@pytest.mark.skipif(not PARITY_DIR, reason="DARKROOM_PARITY_DIR names no reference graphs")
@pytest.mark.parametrize("name", CASES)
async def test_reference_graphs_give_the_reference_pictures(server: Server, name: str) -> None:
    loader = (await server.client.object_info())["CheckpointLoaderSimple"]
    if CHECKPOINT not in loader["input"]["required"]["ckpt_name"][0]:
        pytest.skip(f"the install has no checkpoint {CHECKPOINT}")
    folder = Path(PARITY_DIR) / "cases" / name
    expected = [
        np.asarray(Image.open(path).convert("RGB")) for path in sorted(folder.glob("*.png"))
    ]

    files = await server.files(json.loads((folder / "graph.json").read_text()))

    pictures = [each for each in files if each.media_type == "image/png"]
    assert len(pictures) == len(expected)
    for picture, reference in zip(pictures, expected, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(picture.content)).convert("RGB"))
        assert np.abs(pixels.astype(int) - reference).max() <= MOST_LEVELS
