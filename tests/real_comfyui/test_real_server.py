"""Graphs on a real ComfyUI: its files of every medium, its cache, its errors and its pictures.

`COMFYUI_DIR` is an install with an interpreter of its own, or with the one in `COMFYUI_PYTHON`. The
pictures are compared if its models folder has the small checkpoint of the reference graphs.
"""

from __future__ import annotations

import io
import json
import os
import wave
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
from actors.worker.media_file import read_media
from actors.worker.result_file import FileReady
from actors.worker.run_mark import RunMark
from comfyui.client import ComfyUIClient
from comfyui.object_info import ObjectInfo
from comfyui.own_server import Install, OwnServer
from engine.interface import (
    Catalogue,
    Errored,
    Finished,
    Limits,
    ModelsFolder,
    RunOptions,
    ServerModels,
    compile_with_core_nodes,
)
from tests.support.comfyui.core_requests import CORE_REQUESTS, core_request
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
STEP_NOISE_CASES = ("euler_ancestral__beta", "lcm__ddim_uniform")
"""On a CPU, ComfyUI 0.12.1 draws the noise of these samplers from the seed plus 1, and 0.3.75 does
not.
"""
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

    async def events(
        self, prompt: dict[str, Any], first_index: dict[str, int] | None = None, **files: bytes
    ) -> list[RunEvent]:
        self.jobs += 1
        with RunMark.new() as mark:
            options = RunOptions(input_files=files, first_index=first_index)
            request = RunRequest(f"job-{self.jobs}", 1, prompt, mark.path, options)
            async with aclosing(self.host.run(request)) as events:
                return [each async for each in events]

    async def files(
        self, prompt: dict[str, Any], first_index: dict[str, int] | None = None, **files: bytes
    ) -> list[FileReady]:
        events = await self.events(prompt, first_index, **files)
        assert isinstance(events[-1], Finished), events[-1]
        return [each for each in events if isinstance(each, FileReady)]

    async def is_older_than(self, *version: int) -> bool:
        own: str = (await self.client.system_stats())["system"]["comfyui_version"]
        return tuple(map(int, own.split(".")[: len(version)])) < version

    async def require_checkpoint(self) -> ObjectInfo:
        object_info = ObjectInfo(await self.client.object_info())
        if CHECKPOINT not in (object_info.choices("CheckpointLoaderSimple", "ckpt_name") or ()):
            pytest.skip(f"the install has no checkpoint {CHECKPOINT}")
        return object_info


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
    for video in files[3:5]:
        media = await read_media(video.content, video.media_type)
        assert media.duration_s == pytest.approx(3 / 8, abs=0.15)
        assert (media.width, media.height) == (64, 48)
        assert media.poster is not None


async def test_a_graph_that_the_server_has_cached_writes_its_files_again(server: Server) -> None:
    save = node("SaveImage", images=["1", 0], filename_prefix="same")
    for last in (save, node("PreviewImage", images=["1", 0]), node("PreviewAny", source=["1", 0])):
        counts = [len(await server.files(graph(IMAGES, last))) for _ in range(3)]

        assert counts == [counts[0]] * 3
        assert counts[0] > 0


def blue_png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 24), "blue").save(file, "PNG")
    return file.getvalue()


async def test_an_input_file_is_read_by_the_server(server: Server) -> None:
    prompt = graph(
        node("LoadImage", image="a"), node("SaveImage", images=["1", 0], filename_prefix="x")
    )

    [result] = await server.files(prompt, a=blue_png())

    with Image.open(io.BytesIO(result.content)) as image:
        assert (image.size, image.convert("RGB").getpixel((0, 0))) == ((40, 24), (0, 0, 255))


async def test_a_video_and_an_audio_file_are_read_by_the_server(server: Server) -> None:
    create = node("CreateVideo", images=["1", 0], fps=8)
    save = node("SaveVideo", video=["2", 0], filename_prefix="v", format="auto", codec="auto")
    [video] = await server.files(graph(IMAGES, create, save))
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 8000, 800, "NONE", ""))
        file.writeframes(bytes(1600))
    prompt = graph(
        node("LoadVideo", file="clip.mp4"),
        node("GetVideoComponents", video=["1", 0]),
        node("SaveImage", images=["2", 0], filename_prefix="x"),
        node("LoadAudio", audio="song.wav [input]"),
        node("SaveAudio", audio=["4", 0], filename_prefix="s"),
    )

    files = await server.files(prompt, **{"clip.mp4": video.content, "song.wav": sound.getvalue()})

    assert [each.media_type for each in files] == [*["image/png"] * 3, "audio/flac"]
    sound_read = await read_media(files[3].content, files[3].media_type)
    assert sound_read.duration_s


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
    await server.require_checkpoint()
    if name in STEP_NOISE_CASES and not await server.is_older_than(0, 4):
        pytest.skip("the reference pictures are those of ComfyUI 0.3.64")
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


@pytest.mark.parametrize("name", CORE_REQUESTS)
async def test_a_diffusion_request_runs_as_a_graph_of_core_nodes(server: Server, name: str) -> None:
    declared = await server.require_checkpoint()
    checkpoints = declared.choices("CheckpointLoaderSimple", "ckpt_name") or ()
    body = core_request(name, sd_model_checkpoint=CHECKPOINT.removesuffix(".safetensors"))
    compiled = compile_with_core_nodes(
        body,
        Catalogue(ModelsFolder(Path(DIR))),
        Limits(),
        models=ServerModels({"checkpoints": checkpoints}),
        default_checkpoint=None,
        draw_seed=lambda: 0,
    )
    sent = {each: blue_png() for each in compiled.graph.input_files}
    declared.check(compiled.prompt, sent)

    files = await server.files(compiled.prompt, compiled.first_index, **sent)

    assert [each.index for each in files] == [*range(compiled.images)]
    assert [each.seed for each in files] == [*compiled.settings.seeds]
    for each in files:
        with Image.open(io.BytesIO(each.content)) as image:
            side = body.get("hr_resize_x", 64)
            assert image.size == (side, side)
