"""A mistake in a package's node ends the job that met it, and the engine goes on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from engine.batcher import Request
from engine.engine import Engine
from engine.errors import GraphInvalid
from engine.extensions.installed import installed_extensions, nodes_of
from engine.graph.catalogue import Catalogue
from engine.graph.cost import Estimate, ImageShape, Shape
from engine.graph.declarations import Body, NodeType, node
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.nodes import NODE_TYPES
from engine.reports import Errored, Finished
from tests.support.engine.extensions import entry_point
from tests.support.engine.workflows import Watched
from tests.support.engine.workflows import node as node_of

PROMPT = {
    "1": node_of("Own"),
    "2": node_of("SaveImage", images=["1", 0], filename_prefix="x"),
}
GOOD = {
    "1": node_of("EmptyImage", width=8, height=8, batch_size=1, color=0),
    "2": node_of("SaveImage", images=["1", 0], filename_prefix="x"),
}


def small(_: Mapping[str, Any]) -> Estimate:
    return Estimate((ImageShape(1, 8, 8),))


def own_nodes(
    body: Body, monkeypatch: pytest.MonkeyPatch, **declaration: Any
) -> tuple[NodeType, ...]:
    told = {"inputs": {}, "outputs": ("IMAGE",), "category": "x", "estimate": small}
    declared = node("Own", **told | declaration)(body)
    return nodes_of(installed_extensions([entry_point(monkeypatch, own=declared)]))


@pytest.fixture
def message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., str]]:
    """Runs a graph with a node of that body, which must fail, and another after it."""
    engines: list[Engine] = []

    def run(body: Body, prompt: Any = PROMPT, **declaration: Any) -> str:
        nodes = own_nodes(body, monkeypatch, **declaration)
        catalogue = Catalogue(ModelsFolder(tmp_path), (*NODE_TYPES, *nodes))
        engine = Engine(models=ModelsFolder(tmp_path), more_nodes=nodes)
        engines.append(engine)
        engine.start()
        failed, next_one = Watched(), Watched()
        engine.submit(validate(prompt, catalogue, Limits()), on_event=failed.take)
        end = failed.wait()
        engine.submit(validate(GOOD, catalogue, Limits()), on_event=next_one.take)
        assert isinstance(next_one.wait(), Finished)
        assert isinstance(end, Errored)
        return str(end.error)

    yield run
    for engine in engines:
        engine.stop()


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
    make: Callable[[BaseException], Body], error: BaseException, message: Callable[..., str]
) -> None:
    assert message(make(error)) == f"node 1 (Own): {type(error).__name__}: {error}"


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
        ("a text", "its body yielded str, no Request"),
    ],
    ids=str,
)
def test_a_request_that_cannot_be_served_ends_its_run_alone(
    request_: Any, words: str, message: Callable[..., str]
) -> None:
    assert words.removeprefix("EngineError: ") in message(yielding(request_))


GREY = torch.zeros(1, 8, 8, 3)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "its body must return a tuple of 1 outputs"),
        ((GREY, GREY), "its body must return a tuple of 1 outputs"),
        ((None,), "its output 0 (IMAGE) must be a tensor, not NoneType"),
        ((GREY[0],), "its output 0 (IMAGE) must have 4 dimensions above 0, not (8, 8, 3)"),
        ((GREY[:0],), "must have 4 dimensions above 0, not (0, 8, 8, 3)"),
        ((GREY[..., :1],), "must have 3 channels, not 1"),
        ((GREY.double(),), "must be float32 on the CPU, not torch.float64 on cpu"),
    ],
    ids=str,
)
def test_what_a_body_returns_is_held_to_its_declaration(
    value: Any, words: str, message: Callable[..., str]
) -> None:
    assert words in message(returning(value))


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


def test_an_output_node_returns_images_or_latents(message: Callable[..., str]) -> None:
    prompt = {"1": node_of("Own")}
    saves = {"outputs": (), "is_output": True, "estimate": lambda _: Estimate(results=1)}
    assert "must return a list, not Tensor" in message(returning(GREY), prompt, **saves)
    assert "results must be what context.pixels" in message(returning([GREY]), prompt, **saves)


def estimating(*shapes: Shape, **numbers: Any) -> Callable[[Mapping[str, Any]], Estimate]:
    return lambda _: Estimate(shapes, **numbers)


IMAGE = ImageShape(1, 8, 8)


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (lambda inputs: inputs["missing"], "KeyError: 'missing'"),
        (estimating(), "its estimate has 0 shapes for 1 outputs"),
        (estimating(None), "its estimate says NoneType of an output of type IMAGE"),
        (estimating(IMAGE, work=float("nan")), "its estimate has no work of 0 or more"),
        (estimating(IMAGE, scratch_bytes=-1), "its estimate has no scratch_bytes of 0 or more"),
        (estimating(ImageShape(-1, 8, 8)), "its estimate has no size of its outputs of 0 or more"),
        (lambda _: None, "AttributeError"),
    ],
)
def test_a_cost_that_cannot_be_told_makes_the_graph_invalid(
    estimate: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = own_nodes(returning((GREY,)), monkeypatch, estimate=estimate)
    catalogue = Catalogue(ModelsFolder(tmp_path), (*NODE_TYPES, *nodes))
    with pytest.raises(GraphInvalid) as invalid:
        validate(PROMPT, catalogue, Limits())
    assert invalid.value.details.startswith("Own of own_nodes: ")
    assert words in invalid.value.details


def test_a_check_that_fails_makes_the_graph_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = own_nodes(returning((GREY,)), monkeypatch, check=lambda literals: literals["missing"])
    catalogue = Catalogue(ModelsFolder(tmp_path), (*NODE_TYPES, *nodes))
    with pytest.raises(GraphInvalid) as invalid:
        validate(PROMPT, catalogue, Limits())
    (error,) = invalid.value.node_errors["1"]["errors"]
    assert error["details"] == "its check failed: KeyError: 'missing'"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (raising(KeyError("x")), "KeyError: 'x'"),
        (returning(8), "must return a tuple of 1 outputs"),
        (returning(("8",)), "must return values of the types INT"),
        (returning((True,)), "must return values of the types INT"),
    ],
)
def test_a_value_that_cannot_be_computed_makes_the_graph_invalid(
    body: Body, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = own_nodes(body, monkeypatch, outputs=("INT",), estimate=None, is_pure=True)
    catalogue = Catalogue(ModelsFolder(tmp_path), (*NODE_TYPES, *nodes))
    prompt = GOOD | {"3": node_of("Own")}
    prompt["1"] = node_of("EmptyImage", width=["3", 0], height=8, batch_size=1, color=0)
    with pytest.raises(GraphInvalid) as invalid:
        validate(prompt, catalogue, Limits())
    (error,) = invalid.value.node_errors["3"]["errors"]
    assert words in error["details"]
