"""Files that come with a job, with a node of our own that takes one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import executor, meter
from engine.engine import Engine
from engine.errors import GraphInvalid, InputFileUnavailable
from engine.graph.catalogue import Catalogue
from engine.graph.declarations import InputFile, node
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from engine.reports import Errored
from tests.support.engine.workflows import Watched
from tests.support.engine.workflows import node as used


@node("Grey", inputs={"image": InputFile(tooltip="Its first byte.")}, outputs=("IMAGE",))
def grey(context: Any, image: str) -> tuple[torch.Tensor]:
    """An image as bright as the first byte of the file."""
    return (torch.full((1, 8, 8, 3), context.input_file(image)[0] / 255),)


@node("Latent", inputs={"latent": InputFile(kind="latent")}, outputs=("LATENT",))
def latent(context: Any, latent: str) -> tuple[bytes]:
    return (context.input_file(latent),)


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(ModelsFolder(tmp_path), (*NODE_TYPES, grey, latent))


def graph_of(catalogue: Catalogue, *names: Any, known: list[str] | None = None) -> Graph:
    prompt = {}
    for number, name in enumerate(names):
        prompt[f"l{number}"] = used("Grey", image=name)
        prompt[f"s{number}"] = used("SaveImage", images=[f"l{number}", 0], filename_prefix="")
    return validate(prompt, catalogue, Limits(), known)


def test_object_info_lists_the_files_and_offers_an_upload(catalogue: Catalogue) -> None:
    info = catalogue.object_info(["cat.png", "dog.png"])
    options = {"image_upload": True, "tooltip": "Its first byte."}
    assert info["Grey"]["input"]["required"]["image"] == [["cat.png", "dog.png"], options]
    assert info["Latent"]["input"]["required"]["latent"] == [["cat.png", "dog.png"], {}]
    assert catalogue.object_info()["Grey"]["input"]["required"]["image"] == [[], options]


def test_a_graph_names_each_of_its_files_once_and_in_order(catalogue: Catalogue) -> None:
    assert graph_of(catalogue, "b.png", "a.png", "b.png").input_files == ("b.png", "a.png")
    assert graph_of(catalogue, "b.png", known=["a.png", "b.png"]).input_files == ("b.png",)


def test_a_file_that_is_not_there_is_not_in_the_list(catalogue: Catalogue) -> None:
    with pytest.raises(GraphInvalid) as caught:
        graph_of(catalogue, "cat.png", "../dog.png", known=["cat.png"])
    (error,) = caught.value.body()["node_errors"]["l1"]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["details"] == "image: '../dog.png' not in [cat.png]"
    assert error["extra_info"] == {"input_name": "image", "received_value": "../dog.png"}


@pytest.mark.parametrize(
    ("sent", "type"),
    [
        (3, "invalid_input_type"),
        ("\ud800", "invalid_input_type"),
        (["s0", 0], "bad_linked_input"),
        (["l0", 0], "return_type_mismatch"),
    ],
)
def test_what_is_no_name_is_refused(sent: object, type: str, catalogue: Catalogue) -> None:
    with pytest.raises(GraphInvalid) as caught:
        graph_of(catalogue, sent)
    assert caught.value.body()["node_errors"]["l0"]["errors"][0]["type"] == type


def test_a_node_reads_the_bytes_that_were_submitted(
    engine: Engine, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(executor.BODIES, "Grey", grey.body)
    monkeypatch.setitem(meter.TYPES, "Grey", grey)
    graph = graph_of(catalogue, "dark", "light")
    both = Watched()
    engine.submit(graph, on_event=both.take, input_files={"dark": b"\x10", "light": b"\xf0"})
    assert [image.pixels[0, 0, 0] for image in both.images()] == [0x10, 0xF0]
    one = Watched()
    engine.submit(graph, on_event=one.take, input_files={"dark": b"\x10"})
    end = one.wait()
    assert isinstance(end, Errored)
    assert isinstance(end.error, InputFileUnavailable)
    assert "'light'" in str(end.error)
