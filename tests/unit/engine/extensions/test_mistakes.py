"""Nodes of packages: their values, and mistakes, which end the job that met them alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engine.batcher import Request
from engine.errors import EngineError, GraphInvalid
from engine.extensions import installed_nodes
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Estimate, ImageShape, Shape
from engine.graph.declarations import Body, Int, NodeType
from engine.graph.declarations import node as declared
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from tests.support.comfyui.graphs import Graph
from tests.support.engine.engines import running
from tests.support.engine.extensions import entry_point
from tests.support.engine.graphs import graph_of
from tests.support.engine.workflows import Watched, node

PROMPT = {"1": node("Own"), "2": node("SaveImage", images=["1", 0], filename_prefix="x")}
GOOD = PROMPT | {"1": node("EmptyImage", width=8, height=8, batch_size=1, color=0)}
SIDE = PROMPT | {
    "1": node("EmptyImage", width=["o", 0], height=8, batch_size=1, color=0),
    "o": node("Own"),
}
IMAGE = ImageShape(1, 8, 8)
OF_IMAGE: dict[str, Any] = {"outputs": ("IMAGE",), "estimate": lambda _: Estimate((IMAGE,))}


class Packages:
    """Engines and catalogues with one node `Own` of a package."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def nodes(self, body: Body, **declaration: Any) -> tuple[NodeType, ...]:
        told = {"inputs": {}, "category": "x"} | declaration
        return installed_nodes([entry_point(self._monkeypatch, own=declared("Own", **told)(body))])

    def graph(self, body: Body, prompt: Any = SIDE, **declaration: Any) -> Graph:
        nodes = self.nodes(body, **{"outputs": ("INT",)} | declaration)
        return graph_of(prompt, Catalogue(ModelsFolder(self._folder), nodes), max_side=1000)

    def refusal(self, body: Body, prompt: Any = SIDE, **declaration: Any) -> GraphInvalid:
        with pytest.raises(GraphInvalid) as refusal:
            self.graph(body, prompt, **declaration)
        return refusal.value

    def run(self, body: Body, prompt: Any = SIDE, **declaration: Any) -> Watched:
        """A run with the node, which has ended; another after it must end well."""
        nodes = self.nodes(body, **{"outputs": ("INT",)} | declaration)
        limits = Limits(max_side=1000)
        with running(self._folder, nodes) as engine:
            watched = engine.submit(prompt, within=limits, limits=limits)
            watched.wait()
            assert engine.submit(GOOD).images()
        return watched

    def message(self, body: Body, prompt: Any = PROMPT, **declaration: Any) -> str:
        return str(self.run(body, prompt, **OF_IMAGE | declaration).error(EngineError))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Packages:
    return Packages(tmp_path, monkeypatch)


def raising(error: BaseException) -> Body:
    def body(context: object) -> tuple[object]:
        raise error

    return body


def work_raising(error: BaseException) -> Body:
    def body(context: object) -> Generator[Request, Any, tuple[object]]:
        yield Own()
        raise error

    return body


def returning(value: Any) -> Body:
    return lambda context: value


def yielding(request: Any) -> Body:
    def body(context: object) -> Generator[Request, Any, tuple[object]]:
        return (yield request)

    return body


@dataclass(eq=False)
class Own(Request):
    """A request whose call returns what `results` says."""

    results: Any = (1,)
    rows: int = 1
    name: Any = "own"

    @property
    def key(self) -> Hashable:
        if isinstance(self.name, Exception):
            raise self.name
        return cast("Hashable", self.name)

    @classmethod
    def run_batch(cls, requests: Sequence[Any]) -> Sequence[Any]:
        results = requests[0].results
        if isinstance(results, BaseException):
            raise results
        return cast("Sequence[Any]", results)


@pytest.mark.parametrize("make", [raising, work_raising])
@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), BaseException("no")])
def test_whatever_a_body_raises_ends_its_run_alone(
    make: Callable[[BaseException], Body], error: BaseException, packages: Packages
) -> None:
    assert packages.message(make(error)) == f"node 1 (Own): {type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Own([1, 2]), "EngineError: Own: 2 results of 1 requests"),
        (Own([]), "Own: 0 results of 1 requests"),
        (Own(None), "TypeError"),
        (Own(SystemExit(3)), "SystemExit: 3"),
        (Own(KeyError("x")), "KeyError: 'x'"),
        (Own(name=[]), "Own: TypeError: unhashable type"),
        (Own(name=KeyError("x")), "Own: KeyError: 'x'"),
        (Own(rows=cast("int", "x")), "Own: TypeError"),
        ("a text", "the body yielded str, which is not a Request"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_served_ends_its_run_alone(
    request_: Any, words: str, packages: Packages
) -> None:
    assert words.removeprefix("EngineError: ") in packages.message(yielding(request_))


GREY = torch.zeros(1, 8, 8, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "the body must return a tuple of 1 outputs"),
        ((GREY, GREY), "the body must return a tuple of 1 outputs"),
        ((None,), "the output 0 (IMAGE) must be a tensor, not NoneType"),
        ((GREY[0],), "the output 0 (IMAGE) must have 4 dimensions above 0, not (8, 8, 3)"),
        ((GREY[:0],), "must have 4 dimensions above 0, not (0, 8, 8, 3)"),
        ((GREY[..., :1],), "must have 3 or 4 channels, not 1"),
        ((GREY.double(),), "must be float32 on the CPU, not torch.float64 on cpu"),
    ],
    ids=str,
)
def test_results_are_held_to_the_declaration(value: Any, words: str, packages: Packages) -> None:
    assert words in packages.message(returning(value))


def test_images_may_have_an_opacity() -> None:
    from engine.diffusion.output_check import require_output

    require_output("IMAGE", torch.zeros(1, 8, 8, 4))
    with pytest.raises(ValueError, match="must have 3 or 4 channels, not 5"):
        require_output("IMAGE", torch.zeros(1, 8, 8, 5))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("MASK", GREY),
        ("LATENT", GREY),
        ("CONDITIONING", [1]),
        ("STRING", 1),
        ("INT", True),
        ("FLOAT", 1),
        ("BOOLEAN", 1),
        ("SIGMAS", GREY),
    ],
)
def test_each_type_of_output_is_known(kind: str, value: Any) -> None:
    from engine.diffusion.output_check import require_output

    with pytest.raises(ValueError, match="must "):
        require_output(kind, value)


def test_an_output_node_returns_images_latents_or_texts(packages: Packages) -> None:
    prompt = {"1": node("Own")}
    saves = {"outputs": (), "is_output": True, "estimate": lambda _: Estimate(results=1)}
    assert "must return a list, not Tensor" in packages.message(returning(GREY), prompt, **saves)
    assert "results must be texts, or what context.pixels" in packages.message(
        returning([GREY]), prompt, **saves
    )


def estimating(*shapes: Shape, **numbers: Any) -> Callable[[Mapping[str, Any]], Estimate]:
    return lambda _: Estimate(shapes, **numbers)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (raising(KeyError("x")), "KeyError: 'x'"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (estimating(), "the estimate has 0 shapes for 1 outputs"),
        (estimating(None), "the estimate has NoneType for an output of type IMAGE"),
        (estimating(IMAGE, work=float("nan")), "the estimate has no work of 0 or more"),
        (estimating(IMAGE, scratch_bytes=-1), "the estimate has no scratch_bytes of 0 or more"),
        (estimating(ImageShape(-1, 8, 8)), "the estimate has no size of its outputs of 0 or more"),
        (lambda _: None, "AttributeError"),
    ],
)
def test_a_cost_that_cannot_be_told_makes_the_graph_invalid(
    estimate: Any, words: str, packages: Packages
) -> None:
    refusal = packages.refusal(returning((GREY,)), PROMPT, **OF_IMAGE | {"estimate": estimate})
    assert refusal.details.startswith("Own of own_nodes: ")
    assert words in refusal.details


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError("x"), "KeyError: 'x'"), (SystemExit(3), "SystemExit: 3")]
)
def test_a_check_that_fails_makes_the_graph_invalid(
    error: BaseException, told: str, packages: Packages
) -> None:
    refusal = packages.refusal(returning((GREY,)), PROMPT, **OF_IMAGE, check=raising(error))
    (shown,) = refusal.node_errors["1"]["errors"]
    assert shown["details"] == f"the check of the node failed: {told}"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (raising(KeyError("x")), "KeyError: 'x'"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (returning(8), "must return a tuple of 1 outputs"),
        (returning(("8",)), "must return values of the types INT"),
        (returning((True,)), "must return values of the types INT"),
    ],
)
def test_a_value_that_cannot_be_computed_makes_the_graph_invalid(
    body: Body, words: str, packages: Packages
) -> None:
    (error,) = packages.refusal(body, is_pure=True).node_errors["o"]["errors"]
    assert words in error["details"]


@pytest.mark.parametrize("estimate", [None, lambda _: Estimate((None,), work=1.0)])
def test_a_value_of_a_run_may_be_linked(estimate: Any, packages: Packages) -> None:
    (image,) = packages.run(returning((24,)), estimate=estimate).images()
    assert image.pixels.shape == (8, 24, 3)


def test_the_range_of_the_input_holds_for_a_value_of_a_run(packages: Packages) -> None:
    error = packages.run(returning((2000,))).error(EngineError)
    assert "width is 2000, but must be from 1 to 1000" in str(error)


def test_an_estimate_that_is_no_value_is_a_mistake(packages: Packages) -> None:
    refusal = packages.refusal(returning((8,)), estimate=lambda _: Estimate(("eight",)))
    assert "the estimate has str for an output of type INT" in str(refusal)


def test_what_cannot_be_computed_yet_is_computed_by_the_run(packages: Packages) -> None:
    """A value that the estimate only guesses must not make the graph invalid."""

    def reciprocal(context: object, of: int) -> tuple[int]:
        return (64 // (of - 512),)  # 512 is what is guessed of a file

    prompt = SIDE | {
        "o": node("Own", of=["s", 0]),
        "s": node("GetImageSize", image=["l", 0]),
        "l": node("LoadImage", image="a.png"),
    }
    graph = packages.graph(reciprocal, prompt, inputs={"of": Int(1, 0, 999)}, is_pure=True)
    assert graph.node("o").links


def test_a_type_of_its_own_is_counted_as_it_was_estimated(packages: Packages) -> None:
    width = {"1": node("EmptyImage", width=["o", 1], height=8, batch_size=1, color=0)}
    kinds = {"outputs": ("DEPTHS", "INT"), "estimate": estimating(ImageShape(1, 99, 99), None)}
    assert packages.run(returning((object(), 16)), SIDE | width, **kinds).images()
