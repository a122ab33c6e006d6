"""Numbers, texts and truth values that nodes of packages compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.engine import Engine
from engine.errors import GraphInvalid
from engine.extensions.installed import installed_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Estimate, ImageShape
from engine.graph.declarations import Body, Int, node
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from engine.reports import EngineEvent, Errored, Finished, ImageReady
from tests.support.engine.extensions import entry_point
from tests.support.engine.workflows import Watched
from tests.support.engine.workflows import node as node_of

SIDE = {
    "o": node_of("Own"),
    "1": node_of("EmptyImage", width=["o", 0], height=8, batch_size=1, color=0),
    "2": node_of("SaveImage", images=["1", 0], filename_prefix="x"),
}


class Packages:
    """Engines and catalogues with one node of a package."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._models = ModelsFolder(folder)
        self._monkeypatch = monkeypatch

    def graph(self, body: Body, prompt: Any = SIDE, **declaration: Any) -> Graph:
        """The graph of a prompt with the node `Own`."""
        told = {"inputs": {}, "outputs": ("INT",), "category": "x"} | declaration
        point = entry_point(self._monkeypatch, own=node("Own", **told)(body))
        self.nodes = nodes_of(installed_extensions([point]))
        catalogue = Catalogue(self._models, (*NODE_TYPES, *self.nodes))
        return validate(prompt, catalogue, Limits(max_side=1000))

    def run(self, graph: Graph) -> list[EngineEvent]:
        """What happens while it runs, up to its end."""
        watched = Watched()
        engine = Engine(models=self._models, more_nodes=self.nodes, limits=Limits(max_side=1000))
        engine.start()
        try:
            engine.submit(graph, on_event=watched.take)
            watched.wait()
        finally:
            engine.stop()
        return watched.events


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    return Packages(tmp_path, monkeypatch)


def of_values(_: Mapping[str, Any]) -> Estimate:
    return Estimate((None,), work=1.0)


@pytest.mark.parametrize("estimate", [None, of_values])
def test_a_value_of_a_run_may_be_linked(estimate: Any, packages: Packages) -> None:
    image, _ = packages.run(packages.graph(lambda context: (24,), estimate=estimate))
    assert isinstance(image, ImageReady)
    assert image.pixels.shape == (8, 24, 3)


def test_the_range_of_the_input_holds_for_it(packages: Packages) -> None:
    end = packages.run(packages.graph(lambda context: (2000,)))[-1]
    assert isinstance(end, Errored)
    assert "width is 2000, and must be 1 to 1000" in str(end.error)


def test_an_estimate_that_is_no_value_is_a_mistake(packages: Packages) -> None:
    with pytest.raises(GraphInvalid, match="its estimate says str of an output of type INT"):
        packages.graph(lambda context: (8,), estimate=lambda _: Estimate(("eight",)))


def test_what_cannot_be_computed_yet_is_computed_by_the_run(packages: Packages) -> None:
    """A value that the estimate only guesses must not make the graph invalid."""

    def reciprocal(context: object, of: int) -> tuple[int]:
        return (64 // (of - 512),)  # 512 is what is guessed of a file

    prompt = SIDE | {
        "o": node_of("Own", of=["s", 0]),
        "s": node_of("GetImageSize", image=["l", 0]),
        "l": node_of("LoadImage", image="a.png"),
    }
    graph = packages.graph(reciprocal, prompt, inputs={"of": Int(1, 0, 999)}, is_pure=True)
    assert graph.node("o").links


@pytest.mark.parametrize("part", ["check", "estimate", "body"])
def test_whatever_is_raised_before_a_run_makes_the_graph_invalid(
    part: str, packages: Packages
) -> None:
    def leave(*_: object, **__: object) -> Any:
        raise SystemExit(3)

    parts = {} if part == "body" else {part: leave}
    body: Body = leave if part == "body" else lambda context: (8,)
    with pytest.raises(GraphInvalid, match="SystemExit: 3"):
        packages.graph(body, is_pure=part == "body", **parts)


def test_a_type_of_its_own_is_counted_as_it_was_estimated(packages: Packages) -> None:
    prompt = {"o": node_of("Own"), "p": node_of("Own"), **SIDE}
    prompt["1"] = node_of("EmptyImage", width=["o", 1], height=8, batch_size=1, color=0)
    graph = packages.graph(
        lambda context: (object(), 16),
        prompt,
        outputs=("DEPTHS", "INT"),
        estimate=lambda _: Estimate((ImageShape(1, 99, 99), None)),
    )
    assert isinstance(packages.run(graph)[-1], Finished)
