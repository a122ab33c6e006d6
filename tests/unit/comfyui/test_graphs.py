"""Graphs of jobs on a ComfyUI server, and the entries of its history."""

from __future__ import annotations

from typing import Any

import pytest

from comfyui.errors import NodeError, PromptInterrupted
from comfyui.graphs import FileReference, Output, error_of, outputs_of, seed_of, with_job_files
from storage.file_names import media_type_of


def file(name: str, *, folder: str = "output", subfolder: str = "") -> dict[str, Any]:
    return {"filename": name, "subfolder": subfolder, "type": folder}


def test_a_file_has_the_seed_of_the_nearest_node() -> None:
    graph: dict[str, Any] = {
        "first": {"inputs": {"seed": 1}},
        "second": {"inputs": {"noise_seed": 2, "latent": ["first", 0]}},
        "third": {"inputs": {"seed": ["first", 0], "latent": ["second", 0]}},
        "save": {"inputs": {"images": ["third", 0], "list": [1], "loop": ["save", 0]}},
        "other": {"inputs": {"images": ["gone", 0]}},
    }

    assert [seed_of(graph, id) for id in ("save", "second", "other", "no node")] == [
        1,
        2,
        None,
        None,
    ]


def test_a_job_has_its_own_names_on_the_server() -> None:
    graph = {
        "1": {"class_type": "LoadImage", "inputs": {"image": "cat.png [input]", "n": 3}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a/b"}},
        "3": {
            "class_type": "SaveImage",
            "inputs": {"images": ["1", 0], "filename_prefix": ["4", 0]},
        },
    }

    changed = with_job_files(graph, "job-1", {"cat.png": "darkroom-1.png"})

    inputs = [node["inputs"] for node in changed.values()]
    assert inputs == [
        {"image": "darkroom-1.png", "n": 3},
        {"images": ["1", 0], "filename_prefix": "job-1/a/b"},
        {"images": ["1", 0], "filename_prefix": ["4", 0], "darkroom_run": "job-1"},
    ]
    assert graph["1"]["inputs"]["image"] == "cat.png [input]"


def test_only_the_loaders_of_a_diffusion_job_have_other_names() -> None:
    names = {"cat.png": "darkroom-1.png", "red": "darkroom-2.png"}
    graph = {
        "1": {"class_type": "CLIPTextEncode", "inputs": {"text": "cat.png", "clip": ["0", 1]}},
        "2": {"class_type": "LoadImage", "inputs": {"image": "cat.png"}},
        "3": {"class_type": "LoadImageMask", "inputs": {"image": "red", "channel": "red"}},
    }

    changed = with_job_files(graph, "job-1", names, is_diffusion=True)

    inputs = [{**node["inputs"], "darkroom_run": None} for node in changed.values()]
    assert inputs == [
        {"text": "cat.png", "clip": ["0", 1], "darkroom_run": None},
        {"image": "darkroom-1.png", "darkroom_run": None},
        {"image": "darkroom-2.png", "channel": "red", "darkroom_run": None},
    ]


def test_outputs_are_found_under_every_key_in_the_order_of_the_nodes() -> None:
    outputs = {
        "10": {"gifs": [file("b.mp4")], "animated": [True]},
        "9": {"images": [file("a.png", subfolder="s")], "text": ["hello"]},
        "9:2": {"3d": [file("c.glb")], "files": [file("c.glb")]},
        "11": {"images": [file("p.png", folder="temp")]},
        "12": {"odd": "text", "odder": [{"name": "x"}, None]},
    }

    found = outputs_of({"outputs": outputs})

    assert found == [
        Output("9", FileReference("a.png", "s", "output")),
        Output("9", "hello"),
        Output("9:2", FileReference("c.glb", "", "output")),
        Output("10", FileReference("b.mp4", "", "output")),
    ]


def test_temporary_files_are_outputs_if_there_are_no_others() -> None:
    preview = file("p.png", folder="temp")

    assert outputs_of({"outputs": {"1": {"images": [preview]}}}) == [
        Output("1", FileReference("p.png", "", "temp"))
    ]


@pytest.mark.parametrize("entry", [{}, {"outputs": None}, {"outputs": {"1": None}}])
def test_an_entry_may_have_no_outputs(entry: dict[str, Any]) -> None:
    assert outputs_of(entry) == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("execution_error: no such file\n", NodeError("", "", "Error", "no such file")),
        ("execution_interrupted", PromptInterrupted("the prompt was interrupted")),
        (
            ["execution_error"],
            NodeError("", "", "Error", "ComfyUI reports an error without a message"),
        ),
        (3, NodeError("", "", "Error", "ComfyUI reports an error without a message")),
    ],
)
def test_messages_of_other_forms_are_read_as_far_as_possible(
    message: object, error: Exception
) -> None:
    found = error_of(
        {"status": {"status_str": "error", "messages": [["execution_start", {}], message]}}
    )

    assert (type(found), str(found)) == (type(error), str(error))


def test_the_error_of_a_node_is_read_from_the_history() -> None:
    data = {
        "node_id": "7",
        "node_type": "KSampler",
        "exception_type": "torch.OutOfMemoryError",
        "exception_message": "Allocation on device\n",
    }
    status = {
        "status_str": "error",
        "messages": [["execution_start", {}], ["execution_error", data]],
    }

    error = error_of({"status": status})

    assert isinstance(error, NodeError)
    assert (error.node_id, error.class_type, str(error)) == (
        "7",
        "KSampler",
        "OutOfMemoryError: Allocation on device",
    )
    assert error.is_out_of_memory


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"status_str": "success", "messages": []}, None),
        (None, None),
        ({"status_str": "error", "messages": [["execution_interrupted", {}]]}, PromptInterrupted),
        ({"status_str": "error", "messages": []}, NodeError),
    ],
)
def test_a_history_entry_states_how_the_prompt_ended(status: Any, expected: Any) -> None:
    error = error_of({"status": status})

    assert error is None if expected is None else isinstance(error, expected)


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [("CUDA error: an illegal memory access was encountered", True), ("a bad value", False)],
)
def test_some_errors_mean_that_the_device_is_lost(message: str, is_lost: bool) -> None:
    assert NodeError("1", "N", "RuntimeError", message).has_lost_device is is_lost


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.PNG", "image/png"),
        ("a.webp", "image/webp"),
        ("a.mp4", "video/mp4"),
        ("a.flac", "audio/flac"),
        ("a.glb", "model/gltf-binary"),
        ("noname", "application/octet-stream"),
        ("a.unknown", "application/octet-stream"),
    ],
)
def test_the_suffix_of_a_file_gives_its_media_type(name: str, expected: str) -> None:
    assert media_type_of(name) == expected
