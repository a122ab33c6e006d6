"""Hostile shapes of graphs and bodies: ids, cycles, depth, members, invalid JSON."""

from __future__ import annotations

from typing import Any

from tests.hostile.attack import (
    DIFFUSION,
    WORKFLOW,
    Attack,
    Nodes,
    blank,
    chain,
    easy,
    images,
    inverted,
    node,
    sampled,
    save,
    workflow,
)


def _bad_nodes(count: int, id_chars: int) -> Nodes:
    """Nodes that lack every input, all of them needed by an output."""
    return {f"{number:0{id_chars}}": node("SaveImage") for number in range(count)}


def _bad_crowd(count: int) -> Nodes:
    """Each node is bad, and each output depends on all of them."""
    nodes, last = chain("none", count, inverted)
    return nodes | {f"s{number}": save(last) for number in range(count)}


def _cycle(count: int) -> Nodes:
    nodes, last = chain("start", count, inverted)
    return nodes | {"start": inverted(last), "2": save(last)}


def _with(pnginfo: Any) -> Attack:
    return workflow(
        f"extra_pnginfo {str(pnginfo)[:30]!r}", easy(), extra_data={"extra_pnginfo": pnginfo}
    )


def _raw(name: str, content: bytes, path: str = WORKFLOW, **headers: str) -> Attack:
    return Attack(name, path, content, headers=headers)


ATTACKS: tuple[Attack, ...] = (
    workflow("650 bad nodes with ids of 700 characters", _bad_nodes(650, 700)),
    workflow("1000 bad nodes with ids of 128 characters", _bad_nodes(1000, 128)),
    workflow("500 bad nodes that 499 outputs need", _bad_crowd(499)),
    workflow("a cycle of 998 nodes", _cycle(998)),
    workflow("998 nodes in a row", _cycle(0) | images(997, inverted)),
    workflow(
        "a node with 20,000 unknown inputs",
        easy() | {"1": blank(**{f"i{n}": n for n in range(20_000)})},
    ),
    workflow("an empty id", {"": blank(), "2": save("")}),
    workflow(
        "an id with NUL and escapes", {"\0\x1b[31m\r\n": blank(), "2": save("\0\x1b[31m\r\n")}
    ),
    workflow("a link to itself", easy() | {"2": save("2")}),
    workflow(
        "a link to output 10**300",
        easy() | {"2": node("SaveImage", images=["1", 10**300], filename_prefix="x")},
    ),
    workflow(
        "a link to output -1",
        easy() | {"2": node("SaveImage", images=["1", -1], filename_prefix="x")},
    ),
    workflow("2,000 nodes", {str(number): blank() for number in range(2000)}),
    workflow("a list as prompt", [easy()]),
    workflow("a text as prompt", "x" * 400_000),
    workflow("class_type of 400 kB", easy() | {"3": {"class_type": "x" * 400_000}}),
    workflow(
        "extra_data of 450 kB", easy(), extra_data={"extra_pnginfo": {"workflow": "x" * 450_000}}
    ),
    workflow("extra_data as a list", easy(), extra_data=[1]),
    _with("abc"),
    _with([1]),
    _with({"日本": 1}),
    _with({"": 1}),
    _with({"k" * 80: 1}),
    _with({"nul\0key": 1}),
    _with({"prompt": "another", "parameters": "another"}),
    _with({f"k{number}": number for number in range(6_000)}),
    workflow("client_id of 400 kB", easy(), client_id="x" * 400_000),
    workflow(
        "a graph that is fine, 500 kB of members", easy(), **{f"m{n}": n for n in range(30_000)}
    ),
    workflow(
        "text of 32,768 brackets",
        sampled() | {"6": node("CLIPTextEncode", clip=["4", 1], text="(" * 32_768)},
    ),
    workflow(
        "400 texts of 1,000 characters",
        sampled()
        | {f"t{n}": node("CLIPTextEncode", clip=["4", 1], text=f"{n} " * 250) for n in range(400)},
    ),
    _raw("no JSON", b"{" * 1000),
    _raw("100,000 arrays", b"[" * 100_000 + b"]" * 100_000),
    _raw("a number of 400,000 digits", b'{"prompt": ' + b"9" * 400_000 + b"}"),
    _raw("1e999999", b'{"prompt": 1e999999}'),
    _raw("no UTF-8", b'{"prompt": "\xff\xfe"}'),
    _raw("half a surrogate", b'{"prompt": {"\\ud800": {"class_type": "EmptyImage"}}}'),
    _raw("an empty body", b""),
    _raw("100,000 members of one name", b"{" + b'"prompt":1,' * 40_000 + b'"prompt":2}'),
    _raw("a body of 600 kB", b'{"prompt": "' + b"x" * 600_000 + b'"}'),
    _raw("a body of zeros", b"\0" * 100_000, DIFFUSION),
    _raw("a body that says it is gzip", b"\x1f\x8b" + b"\0" * 1000, **{"content-encoding": "gzip"}),
)
