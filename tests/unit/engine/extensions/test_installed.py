"""Packages of nodes that cannot be used say why, before anything starts."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ExtensionInvalid
from engine.extensions import API_VERSION, GROUP, installed_extensions
from engine.graph.cost import Estimate, ImageShape
from engine.graph.declarations import Body, Int, Link, NodeType, node
from engine.nodes import NODE_TYPES
from tests.support.engine.extensions import entry_point


def own(class_type: str = "Own", body: Body | None = None, **declaration: Any) -> NodeType:
    """A node with one output of no size."""

    def returns_one(context: object) -> tuple[object]:
        """Returns one."""
        return (context,)

    return node(class_type, **{"inputs": {}, "outputs": ("THING",)} | declaration)(
        body or returns_one
    )


def refusal(*points: EntryPoint) -> str:
    with pytest.raises(ExtensionInvalid) as refused:
        installed_extensions(points)
    return str(refused.value)


def test_what_a_module_declares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = {"ours": NODE_TYPES[0]}
    (found,) = installed_extensions([entry_point(monkeypatch, a=own("A"), **imported, b=own("B"))])
    assert [each.class_type for each in found.node_types] == ["A", "B"]
    assert {each.package for each in found.node_types} == {"own_nodes"}


def test_nothing_is_installed() -> None:
    assert installed_extensions([]) == ()


def test_a_name_that_two_packages_have_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = entry_point(monkeypatch, "one_pack", own=own())
    other = entry_point(monkeypatch, "other_pack", own=own())
    assert "Own of other_pack ? has the name of a node of one_pack ?" in refusal(one, other)


def test_a_module_that_does_not_load_is_named() -> None:
    point = EntryPoint("pictures", "no_such_pack.nodes", GROUP)
    text = refusal(point)
    assert text.startswith("no_such_pack.nodes ?, entry point pictures = no_such_pack.nodes: ")
    assert "ModuleNotFoundError: No module named 'no_such_pack'" in text


def test_a_module_that_exits_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exiting_nodes.py").write_text("raise SystemExit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(EntryPoint("x", "exiting_nodes", GROUP)).endswith(": SystemExit: 3")


def test_a_module_may_not_load_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [each for each in sys.modules if each.partition(".")[0] == "torch"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "heavy_nodes.py").write_text('NODES_API = "1.0"\nimport torch')
    assert "its import also imports torch" in refusal(EntryPoint("x", "heavy_nodes", GROUP))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (None, 'the module must define NODES_API = "1.2"'),
        (1.0, "the module must define NODES_API"),
        ("1", "the module must define NODES_API"),
        ("1.x", "the module must define NODES_API"),
        (f"{API_VERSION[0] + 1}.0", "install another version of the package"),
        ("0.0", "install another version of the package"),
        (f"{API_VERSION[0]}.{API_VERSION[1] + 1}", "install another version of the package"),
    ],
)
def test_a_module_says_for_which_version_it_was_made(
    version: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words in refusal(entry_point(monkeypatch, own=own(), NODES_API=version))


def takes_nothing() -> tuple[int]:
    """Takes not even a context."""
    return (1,)


def lacks_one(context: object, a: int) -> tuple[int]:
    """Takes one of its inputs."""
    return (a,)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (own(body=takes_nothing), "the body does not accept the inputs"),
        (
            own(body=lacks_one, inputs={"a": Int(1, 0, 2), "b": Int(1, 0, 2)}),
            "the body does not accept the inputs: got an unexpected keyword argument 'b'",
        ),
        (
            own(body=lacks_one, optional={"a": Link("IMAGE")}),
            "the body does not accept the inputs: missing a required argument: 'a'",
        ),
        (
            own(outputs=("THING", "MASK", "IMAGE")),
            "the node needs an estimate, because it has outputs with sizes: IMAGE, MASK",
        ),
        (own(is_pure=True), "a pure node may only have outputs of the types STRING, INT"),
        (own(outputs=("COMBO",)), "the node may not have outputs of the type COMBO"),
        (own(outputs=("INT", "*")), "the node may not have outputs of the type *"),
        (own(outputs=()), "the node must either have outputs or be an output node"),
        (own(is_output=True), "the node must either have outputs or be an output node"),
        (
            own(type_follows="a"),
            "a, which `type_follows` or `passed_input` names, is no input of type Link",
        ),
        (
            own(body=lacks_one, inputs={"a": Int(1, 0, 2)}, passed_input="a"),
            "a, which `type_follows` or `passed_input` names, is no input of type Link",
        ),
        (own(""), "the node has no name"),
        (own("KSampler"), "KSampler of own_nodes ? has the name of a node of Darkroom: rename it"),
        (NODE_TYPES[0], "the module declares no node"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(
    declared: NodeType, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert words in refusal(entry_point(monkeypatch, own=declared))


def test_an_entry_point_names_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_point(monkeypatch, own=own())
    assert "the entry point must name a module" in refusal(EntryPoint("x", "own_nodes:own", GROUP))


def test_a_node_with_sizes_and_an_estimate_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sized = own(outputs=("IMAGE",), estimate=lambda _: Estimate((ImageShape(1, 8, 8),)))
    assert installed_extensions([entry_point(monkeypatch, own=sized)])
