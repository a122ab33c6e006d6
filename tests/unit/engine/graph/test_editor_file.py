"""A file of ComfyUI's editor is converted to the graph that the editor itself would send."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from engine.errors import GraphInvalid
from engine.graph.editor_file.conversion import prompt_of
from engine.graph.editor_file.placeholders import chosen_text

Json = dict[str, Any]

INFO: dict[str, Json] = {
    "Loader": {"input": {"required": {"name": [["a.st", "b.st"]]}}, "output": ["MODEL", "CLIP"]},
    "Lora": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "clip": ["CLIP"],
                "lora_name": [["l.st"]],
                "strength": ["FLOAT", {"default": 1.0}],
            }
        },
        "output": ["MODEL", "CLIP"],
    },
    "Text": {
        "input": {"required": {"text": ["STRING", {}], "clip": ["CLIP"]}},
        "output": ["CONDITIONING"],
    },
    "Sampler": {
        "input": {
            "required": {
                "model": ["MODEL"],
                "seed": ["INT", {"default": 0}],
                "steps": ["INT", {"default": 20}],
                "sampler": ["COMBO", {"options": ["euler", "fixed"]}],
                "positive": ["CONDITIONING"],
            },
            "optional": {"tiled": ["BOOLEAN", {"default": False}]},
        },
        "output": ["IMAGE"],
    },
    "Number": {
        "input": {"required": {"value": ["INT", {"control_after_generate": True}]}},
        "output": ["INT"],
    },
    "Scale": {
        "input": {
            "required": {
                "image": ["IMAGE"],
                "mode": [
                    "COMFY_DYNAMICCOMBO_V3",
                    {
                        "options": [
                            {"key": "by", "inputs": {"required": {"factor": ["FLOAT", {}]}}},
                            {
                                "key": "to",
                                "inputs": {
                                    "required": {"width": ["INT", {}], "height": ["INT", {}]}
                                },
                            },
                        ]
                    },
                ],
                "method": [["area", "lanczos"]],
            }
        },
        "output": ["IMAGE"],
    },
    "Save": {
        "input": {"required": {"images": ["IMAGE"], "prefix": ["STRING", {"default": "x"}]}},
        "output": [],
        "output_node": True,
    },
    "Power Lora Loader (rgthree)": {
        "input": {"required": {}, "optional": {"model": ["MODEL"]}},
        "output": ["MODEL"],
    },
}
OUTPUTS = {name: info["output"] for name, info in INFO.items()}


def node(
    id: int, type: str, *values: Any, mode: int = 0, outputs: Any = None, **links: Any
) -> Json:
    """`links` are the ids of links by the names of inputs, or pairs of an id and a type."""
    pairs = {name: each if isinstance(each, tuple) else (each, "*") for name, each in links.items()}
    return {
        "id": id,
        "type": type,
        "mode": mode,
        "inputs": [{"name": n, "link": link, "type": kind} for n, (link, kind) in pairs.items()],
        "outputs": [{"type": each} for each in outputs or OUTPUTS.get(type, ["*"])],
        "widgets_values": list(values),
    }


def file_of(*nodes: Json, links: list[Any], **members: Any) -> Json:
    return {"nodes": [*nodes], "links": links, **members}


def converted(file: Json) -> Json:
    return prompt_of(file, INFO.get)


def inputs_of(file: Json, id: str) -> Json:
    found: Json = converted(file)[id]["inputs"]
    return found


def sampled(*nodes: Json, links: list[Any], **members: Any) -> Json:
    """A file whose sampler 3 has the link 1 as its model."""
    sampler = node(3, "Sampler", 7, "fixed", 4, "euler", model=(1, "MODEL"))
    return file_of(node(1, "Loader", "a.st"), *nodes, sampler, links=links, **members)


# ------------------------------------------------------------------------------- placeholders


CHOICES = {
    "{a|b}": ("a", "b"),
    "a {red|dark {blue|green}} {cat}!": ("a red cat!", "a dark green cat!"),
    "{|a||b|} {||}": (" ", " "),
    "a /* {b|c} */ b // c {d|\ne": ("a  b \ne",) * 2,
    "/* a {b|c}": ("/* a b", "/* a c"),
    r"(a\) \{b|c\} {d\|e|f\}": (r"(a\) {b|c} d|e", r"(a\) {b|c} f}"),
    r"\\{a|b}": (r"\\a", r"\\b"),
    "a|b} {c|{d|e": ("a|b} c", "a|b} e"),
    "": ("", ""),
}
"""The texts of the editor's own tests are of these kinds."""


@pytest.mark.parametrize("text", CHOICES)
def test_one_option_of_a_choice_is_taken(text: str) -> None:
    assert (chosen_text(text, lambda o: o[0]), chosen_text(text, lambda o: o[-1])) == CHOICES[text]


def test_choices_in_prompts_are_drawn_when_a_file_is_sent() -> None:
    texts = INFO | {
        "Dynamic": {"input": {"required": {"text": ["STRING", {"dynamicPrompts": True}]}}},
        "Plain": {"input": {"required": {"text": ["STRING", {"multiline": True}]}}},
    }
    file = file_of(node(1, "Dynamic", "{a|b} c"), node(2, "Plain", "{a|b} c"), links=[])
    drawn = [prompt_of(file, texts.get) for _ in range(60)]
    assert {each["1"]["inputs"]["text"] for each in drawn} == {"a c", "b c"}
    assert {each["2"]["inputs"]["text"] for each in drawn} == {"{a|b} c"}
    # The editor replaces the text of a primitive node, and not the text that a subgraph gets.
    text = {"name": "text", "linkIds": [1]}
    inner = node(1, "Dynamic", "old", text=(1, "STRING"))
    inner["inputs"][0]["widget"] = {"name": "text"}
    given = {"id": "group", "nodes": [inner], "links": [[1, -10, 0, 1, 0, "STRING"]]}
    linked = file_of(
        node(1, "Dynamic", "old", text=(7, "STRING")),
        node(2, "PrimitiveNode", "{a|b}"),
        node(3, "group", "{a|b}", outputs=[]),
        links=[[7, 2, 0, 1, 0, "STRING"]],
        definitions={"subgraphs": [given | {"inputs": [text]}]},
    )
    graph = prompt_of(linked, texts.get, choose=lambda options: options[-1])
    assert [graph[id]["inputs"]["text"] for id in ("1", "3:1")] == ["b", "{a|b}"]
    deep = file_of(node(1, "Dynamic", "{" * 10**6), links=[])
    with pytest.raises(GraphInvalid, match=r"node 1 \(Dynamic\): the choices .* too deeply"):
        prompt_of(deep, texts.get)


PREFIXES = {
    "%date:yyyy-MM-dd%/%date:hhmmss%": "2026-03-07/090502",
    "%date:yy M d h m s yyy%": "26 3 7 9 5 2 yyy",
    "%date:yyyy.MM.dd%": "2026",
    "%date:yyyy.MM%": "%date:yyyy.MM%",
    "%Sampler.seed%-%Noise.value%": "7-8",
    "%My text.text%": "a_b_c",
    "%Inner.steps%": "3",
    "%Seeded.seed%": "8",
    "%Number.tiled% %Real.strength%": "%Number.tiled% 1",
    "%width%x%height% %None.seed% %Sampler.none% 100%": (
        "%width%x%height% %None.seed% %Sampler.none% 100%"
    ),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_has_the_time_and_values_of_widgets(prefix: str) -> None:
    save = {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}
    info = INFO | {
        "SaveImage": {"input": {"required": save}, "python_module": "nodes"},
        "Pack": {"input": {"required": save}, "python_module": "custom_nodes.pack"},
    }
    named = {"properties": {"Node name for S&R": "Sampler"}}
    inner = node(1, "Sampler", 6, "fixed", 3, "euler") | {"title": "Inner"}
    file = file_of(
        node(9, "SaveImage", prefix),
        node(8, "Pack", prefix),
        node(1, "Text", "x") | {"title": "Sampler"},
        node(2, "Sampler", 7, "fixed", 4, "euler") | named,
        node(3, "PrimitiveNode", 8, "fixed", outputs=["INT"]) | {"title": "Noise"},
        node(4, "Text", "a/b:c") | {"title": "My text"},
        node(5, "Sampler", 9, "fixed", 4, "euler", seed=(1, "INT")) | {"title": "Seeded"},
        node(6, "Lora", "l.st", 1.0) | {"title": "Real"},
        node(7, "group", outputs=[]),
        links=[[1, 3, 0, 5, 0, "INT"]],
        definitions={"subgraphs": [{"id": "group", "nodes": [inner], "links": []}]},
    )
    now = datetime(2026, 3, 7, 9, 5, 2, tzinfo=UTC)
    graph = prompt_of(file, info.get, now=now)
    assert graph["9"]["inputs"]["filename_prefix"] == PREFIXES[prefix]
    assert graph["8"]["inputs"]["filename_prefix"] == prefix


# ------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7, "randomize", 4, "euler"], (7, 4, "euler")),
        ([7, "increment-wrap", 4, "euler"], (7, 4, "euler")),
        ([7, True, 4, "euler"], (7, 4, "euler")),
        ([7, False, 4, "euler"], (7, 4, "euler")),
        ([7, 4, "euler"], (7, 4, "euler")),
        ([7, "fixed", 4, "fixed"], (7, 4, "fixed")),
        ([7, "fixed", 4, "euler", True, "stale", None], (7, 4, "euler")),
        ([7], (7, 20, "euler")),
        ([], (0, 20, "euler")),
    ],
)
def test_values_are_named_in_the_order_of_the_widgets(
    values: list[Any], expected: tuple[Any, ...]
) -> None:
    found = inputs_of(file_of(node(3, "Sampler", *values), links=[]), "3")
    assert (found["seed"], found["steps"], found["sampler"]) == expected


def test_a_number_is_followed_by_its_change_after_a_run() -> None:
    assert inputs_of(file_of(node(1, "Number", 512, "fixed"), links=[]), "1") == {"value": 512}


@pytest.mark.parametrize("member", ["widgets_values", "widgets_values_named"])
def test_values_may_have_names(member: str) -> None:
    sampler = node(3, "Sampler")
    sampler[member] = {"steps": 4, "seed": 7, "preview": {"shown": True}}
    found = inputs_of(file_of(sampler, links=[]), "3")
    assert found == {"seed": 7, "steps": 4, "sampler": "euler"}


def test_a_list_of_values_goes_before_their_names() -> None:
    sampler = node(3, "Sampler", 8, "fixed", 5, "euler")
    sampler["widgets_values_named"] = {"steps": 4, "seed": 7}
    assert inputs_of(file_of(sampler, links=[]), "3")["steps"] == 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["by", 2.0, "lanczos"], {"mode": "by", "mode.factor": 2.0, "method": "lanczos"}),
        (["to", 8, 9, "area"], {"mode": "to", "mode.width": 8, "mode.height": 9, "method": "area"}),
        ([], {"mode": "by", "mode.factor": 0.0, "method": "area"}),
    ],
)
def test_a_dynamic_choice_has_widgets_of_its_own(values: list[Any], expected: Json) -> None:
    assert inputs_of(file_of(node(1, "Scale", *values), links=[]), "1") == expected


def test_a_number_that_an_older_version_lacks_has_its_default() -> None:
    info = INFO | {
        "Rescale": {
            "input": {
                "required": {
                    "pixels": ["FLOAT", {"default": 2.0}],
                    "multiple": ["INT", {"default": 8}],
                    "method": [["area", "lanczos"]],
                }
            }
        }
    }
    file = file_of(node(1, "Rescale", 1.5, "lanczos"), links=[])
    expected = {"pixels": 1.5, "multiple": 8, "method": "lanczos"}
    assert prompt_of(file, info.get)["1"]["inputs"] == expected


def test_widgets_of_packs_are_inputs_too() -> None:
    lora = {"on": True, "lora": "l.st", "strength": 1}
    header = {"type": "PowerLoraLoaderHeaderWidget"}
    loader = node(1, "Power Lora Loader (rgthree)", {}, header, lora, lora, {}, "")
    found = inputs_of(file_of(loader, links=[]), "1")
    assert found == {"PowerLoraLoaderHeaderWidget": header, "lora_1": lora, "lora_2": lora}


def test_an_unknown_state_of_a_pack_is_not_certain() -> None:
    with pytest.raises(GraphInvalid, match="has a value that its type does not have"):
        converted(file_of(node(1, "Power Lora Loader (rgthree)", {"a": 1}), links=[]))


def test_an_unknown_state_of_a_pack_may_have_a_name() -> None:
    loader = node(1, "Power Lora Loader (rgthree)", {"a": 1})
    loader["widgets_values_named"] = {"state": {"a": 1}}
    assert inputs_of(file_of(loader, links=[]), "1") == {"state": {"a": 1}}


def test_the_state_of_a_node_of_comfyui_is_ignored() -> None:
    info = INFO | {"Compare": {"input": {"required": {}}, "python_module": "comfy_extras.nodes_x"}}
    file = file_of(node(1, "Compare", {"before": "/view"}), links=[])
    assert prompt_of(file, info.get)["1"]["inputs"] == {}


def test_a_list_is_marked_as_a_value() -> None:
    found = inputs_of(file_of(node(1, "Text", ["a", 0]), links=[]), "1")
    assert found == {"text": {"__value__": ["a", 0]}}


# -------------------------------------------------------------------------------- mute, bypass


def lora(mode: int, *, model: Any = (2, "MODEL"), clip: Any = (4, "CLIP")) -> Json:
    return node(2, "Lora", "l.st", 1.0, mode=mode, model=model, clip=clip)


LORA_LINKS = [[1, 2, 0, 3, 0, "MODEL"], [2, 1, 0, 2, 0, "MODEL"], [4, 1, 1, 2, 1, "CLIP"]]


def test_a_bypassed_node_passes_the_input_of_the_same_type() -> None:
    file = sampled(
        lora(4),
        node(4, "Text", "a cat", clip=(5, "CLIP")),
        links=[*LORA_LINKS, [5, 2, 1, 4, 0, "CLIP"]],
    )
    prompt = converted(file)
    assert prompt.keys() == {"1", "3", "4"}
    assert prompt["3"]["inputs"]["model"] == ["1", 0]
    assert prompt["4"]["inputs"]["clip"] == ["1", 1]


def test_bypassed_nodes_follow_each_other() -> None:
    second = node(5, "Lora", "l.st", 1.0, mode=4, clip=(None, "CLIP"), model=(6, "MODEL"))
    links = [[1, 5, 0, 3, 0, "MODEL"], [6, 2, 0, 5, 1, "MODEL"], *LORA_LINKS[1:]]
    assert inputs_of(sampled(lora(4), second, links=links), "3")["model"] == ["1", 0]


def test_a_bypassed_node_without_such_an_input_leaves_the_widget_its_value() -> None:
    sampler = node(3, "Sampler", 7, "fixed", 4, "euler", steps=(1, "INT"))
    file = file_of(node(1, "Number", 9, mode=4), sampler, links=[[1, 1, 0, 3, 1, "INT"]])
    assert inputs_of(file, "3")["steps"] == 4


@pytest.mark.parametrize("kind", ["MODEL", "model", "MODEL,CLIP", "*", ""])
def test_types_are_compared_as_the_editor_does(kind: str) -> None:
    loras = lora(4, model=(2, kind), clip=(None, "CLIP"))
    assert inputs_of(sampled(loras, links=LORA_LINKS[:2]), "3")["model"] == ["1", 0]


def test_an_input_from_a_muted_node_is_left_out() -> None:
    prompt = converted(sampled(lora(2), links=LORA_LINKS))
    assert prompt.keys() == {"1", "3"}
    assert "model" not in prompt["3"]["inputs"]


def test_a_muted_or_bypassed_node_may_have_an_unknown_type() -> None:
    links = [[1, 2, 0, 3, 0, "MODEL"], [2, 1, 0, 2, 0, "MODEL"]]
    stranger = node(2, "Stranger", {"a": [1]}, mode=4, outputs=["MODEL"], model=(2, "MODEL"))
    muted = node(5, "Other", mode=2)
    assert inputs_of(sampled(stranger, muted, links=links), "3")["model"] == ["1", 0]


def test_an_unknown_node_is_refused_by_name() -> None:
    with pytest.raises(GraphInvalid) as raised:
        converted(sampled(node(2, "Stranger", "a"), links=[[1, 1, 0, 3, 0, "MODEL"]]))
    assert (raised.value.type, raised.value.details) == ("missing_node_type", "node 2: Stranger")


# ------------------------------------------------------------------------- nodes of the editor


def test_primitives_set_values_through_reroutes() -> None:
    sampler = node(3, "Sampler", 7, "fixed", 4, "euler", steps=(2, "INT"))
    file = file_of(
        node(1, "PrimitiveNode", 9, "fixed"),
        node(2, "Reroute", **{"": 1}),
        sampler,
        links=[[1, 1, 0, 2, 0, "INT"], [2, 2, 0, 3, 1, "INT"]],
    )
    prompt = converted(file)
    assert prompt.keys() == {"3"}
    assert prompt["3"]["inputs"]["steps"] == 9


@pytest.mark.parametrize("type", ["Reroute", "Reroute (rgthree)", "ReroutePrimitive|pysssss"])
def test_reroutes_of_packs_pass_their_input(type: str) -> None:
    links = [[1, 5, 0, 3, 0, "*"], [2, 1, 0, 5, 0, "*"]]
    assert inputs_of(sampled(node(5, type, value=2), links=links), "3")["model"] == ["1", 0]


@pytest.mark.parametrize("prefix", ["", "easy "])
def test_a_getter_has_the_input_of_its_setter(prefix: str) -> None:
    setter, getter = (
        f"{prefix}{name}" for name in (("setNode", "getNode") if prefix else ("SetNode", "GetNode"))
    )
    file = sampled(
        node(5, getter, "the model"),
        node(6, setter, "the model", MODEL=2),
        node(7, setter, "another", MODEL=4),
        links=[[1, 5, 0, 3, 0, "MODEL"], [2, 1, 0, 6, 0, "MODEL"], [4, 1, 1, 7, 0, "CLIP"]],
    )
    prompt = converted(file)
    assert prompt.keys() == {"1", "3"}
    assert prompt["3"]["inputs"]["model"] == ["1", 0]


def test_notes_and_switches_of_the_editor_are_left_out() -> None:
    notes = [
        node(5, "Note", "a"),
        node(6, "MarkdownNote", "b"),
        node(7, "Label (rgthree)"),
        node(8, "Fast Groups Bypasser (rgthree)", True),
    ]
    assert converted(sampled(*notes, links=[[1, 1, 0, 3, 0, "MODEL"]])).keys() == {"1", "3"}


def test_a_server_may_declare_a_node_with_the_name_of_one_of_the_editor() -> None:
    declared = INFO | {"Label (rgthree)": {"input": {"required": {}}, "output": []}}
    prompt = prompt_of(file_of(node(1, "Label (rgthree)"), links=[]), declared.get)
    assert prompt == {"1": {"class_type": "Label (rgthree)", "inputs": {}}}


# --------------------------------------------------------------------------------- subgraphs

OUTER, INNER = "0b1b5e6a-0000-4000-8000-000000000001", "0b1b5e6a-0000-4000-8000-000000000002"


def link(id: int, origin: int, slot: int, target: int, to: int) -> Json:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    return dict(zip(names, (id, origin, slot, target, to), strict=True)) | {"type": "*"}


def subgraph(
    id: str, *nodes: Json, links: list[Json], inputs: list[Any], outputs: list[Any]
) -> Json:
    """`inputs` and `outputs` are names with the ids of links."""
    sides = {
        side: [{"name": name, "linkIds": ids} for name, ids in each]
        for side, each in (("inputs", inputs), ("outputs", outputs))
    }
    return {"id": id, "nodes": [*nodes], "links": links, **sides}


def with_widget(user: Json, *names: str) -> Json:
    """Add inputs with a widget and without a link."""
    user["inputs"] += [{"name": n, "type": "*", "link": None, "widget": {"name": n}} for n in names]
    return user


def with_link(inner: Json, name: str, link: int) -> Json:
    """Add an input with a widget and a link."""
    inner["inputs"].append({"name": name, "type": "*", "link": link, "widget": {"name": name}})
    return inner


def sampling_subgraph() -> Json:
    """A text, and a sampler with it."""
    return subgraph(
        OUTER,
        with_link(node(1, "Text", "inner text", clip=11), "text", 12),
        with_link(node(2, "Sampler", 1, "fixed", 2, "euler", model=13, positive=14), "seed", 15),
        links=[
            link(11, -10, 1, 1, 0),
            link(12, -10, 2, 1, 1),
            link(13, -10, 0, 2, 0),
            link(14, 1, 0, 2, 1),
            link(15, -10, 3, 2, 2),
            link(16, 2, 0, -20, 0),
        ],
        inputs=[("model", [13]), ("clip", [11]), ("text", [12]), ("seed", [15])],
        outputs=[("IMAGE", [16])],
    )


def using(*values: Any, **members: Any) -> Json:
    """A file that uses the subgraph as node 5, and saves its output."""
    user = node(5, OUTER, *values, outputs=["IMAGE"], model=(1, "MODEL"), clip=(2, "CLIP"))
    return file_of(
        node(4, "Loader", "a.st"),
        with_widget(user, "text", "seed") | members,
        node(6, "Save", "x", images=(3, "IMAGE")),
        links=[[1, 4, 0, 5, 0, "MODEL"], [2, 4, 1, 5, 1, "CLIP"], [3, 5, 0, 6, 0, "IMAGE"]],
        definitions={"subgraphs": [sampling_subgraph()]},
    )


def test_a_subgraph_becomes_its_nodes() -> None:
    prompt = converted(using())
    assert prompt.keys() == {"4", "5:1", "5:2", "6"}
    assert prompt["6"]["inputs"]["images"] == ["5:2", 0]
    assert prompt["5:1"]["inputs"] == {"clip": ["4", 1], "text": "inner text"}
    assert prompt["5:2"]["inputs"] == {
        "model": ["4", 0],
        "positive": ["5:1", 0],
        "seed": 1,
        "steps": 2,
        "sampler": "euler",
    }


SEED, STEPS, TEXT, OWN_TEXT = ["2", "seed"], ["2", "steps"], ["1", "text"], ["-1", "text"]


@pytest.mark.parametrize(
    ("values", "promoted", "expected"),
    [
        (["a", 7], None, ("a", 7, 2)),
        (["a", 7, "randomize"], None, ("a", 7, 2)),
        ([None, 7], None, ("inner text", 7, 2)),
        ([], [TEXT, SEED], ("inner text", 1, 2)),
        ([7, "a"], [SEED, TEXT], ("a", 7, 2)),
        ([7, 9, "a"], [SEED, STEPS, TEXT], ("a", 7, 9)),
        ([None, "a"], [STEPS, OWN_TEXT], ("a", 1, 2)),
        (["a", 7], [STEPS], ("a", 7, 2)),
        ([7, "fixed"], [SEED, ["2", "control_after_generate"]], ("inner text", 7, 2)),
    ],
)
def test_promoted_widgets_have_the_values_of_the_node(
    values: list[Any], promoted: list[Any] | None, expected: tuple[Any, ...]
) -> None:
    properties = {} if promoted is None else {"proxyWidgets": promoted}
    prompt = converted(using(*values, properties=properties))
    sampler = prompt["5:2"]["inputs"]
    assert (prompt["5:1"]["inputs"]["text"], sampler["seed"], sampler["steps"]) == expected
    assert "control_after_generate" not in sampler


def test_promoted_widgets_may_have_values_without_inputs() -> None:
    file = using("a", 7)
    del file["nodes"][1]["inputs"][2:]
    prompt = converted(file)
    assert (prompt["5:1"]["inputs"]["text"], prompt["5:2"]["inputs"]["seed"]) == ("a", 7)


def test_values_of_promoted_widgets_may_have_names() -> None:
    names = {"text": "a", "seed": 7}
    prompt = converted(using(widgets_values_named=names))
    assert (prompt["5:1"]["inputs"]["text"], prompt["5:2"]["inputs"]["seed"]) == ("a", 7)
    prompt = converted(using("edited", 8, widgets_values_named=names))
    assert (prompt["5:1"]["inputs"]["text"], prompt["5:2"]["inputs"]["seed"]) == ("edited", 8)


def test_a_link_to_an_exposed_input_replaces_its_value() -> None:
    file = using("a", 7)
    file["nodes"][1]["inputs"][3]["link"] = 9
    file["nodes"].append(node(8, "Number", 5, "fixed"))
    file["links"].append([9, 8, 0, 5, 3, "INT"])
    assert inputs_of(file, "5:2")["seed"] == ["8", 0]


def test_inputs_of_a_subgraph_are_found_by_name() -> None:
    file = using("a", 7)
    file["nodes"][1]["inputs"].reverse()
    prompt = converted(file)
    assert prompt["5:2"]["inputs"]["model"] == ["4", 0]
    assert prompt["5:1"]["inputs"]["clip"] == ["4", 1]


def test_two_uses_of_a_subgraph_have_their_own_values() -> None:
    file = using("a", 7)
    second = with_widget(node(7, OUTER, "b", 8, model=1, clip=2), "text", "seed")
    file["nodes"] += [second, node(8, "Save", "y", images=10)]
    file["links"].append([10, 7, 0, 8, 0, "IMAGE"])
    prompt = converted(file)
    assert [prompt[each]["inputs"]["text"] for each in ("5:1", "7:1")] == ["a", "b"]
    assert prompt["8"]["inputs"]["images"] == ["7:2", 0]


@pytest.mark.parametrize("mode", [2, 4])
def test_a_muted_or_bypassed_subgraph_has_no_nodes(mode: int) -> None:
    prompt = converted(using("a", 7, mode=mode))
    assert prompt.keys() == {"4", "6"}
    assert "images" not in prompt["6"]["inputs"]


def test_a_bypassed_subgraph_passes_an_input_of_the_same_type() -> None:
    file = using("a", 7, mode=4)
    file["nodes"][1]["inputs"].append({"name": "before", "type": "IMAGE", "link": 9})
    file["nodes"].append(node(8, "Scale", "by", 2.0, "area"))
    file["links"].append([9, 8, 0, 5, 4, "IMAGE"])
    assert inputs_of(file, "6")["images"] == ["8", 0]


@pytest.mark.parametrize("place", ["root", "nested"])
@pytest.mark.parametrize(
    ("values", "promoted", "expected"),
    [
        (["a", 7], None, ("a", 7, 2)),
        (["a", 7], [["3", "text"], ["3", "seed"]], ("a", 7, 2)),
        (["a", 9], [["3", "text"], ["3", "2: steps"]], ("a", 1, 9)),
        (["a", 9], [["3", "text"], ["3", "steps"]], ("a", 1, 9)),
    ],
)
def test_subgraphs_may_be_nested(
    values: list[Any], promoted: Any, expected: tuple[Any, ...], place: str
) -> None:
    inner = sampling_subgraph() | {"id": INNER}
    user = with_widget(node(3, INNER, model=21, clip=22), "text", "seed")
    user["properties"] = {"proxyWidgets": [["2", "steps"]]}
    user["inputs"][2]["link"], user["inputs"][3]["link"] = 23, 24
    outer = subgraph(
        OUTER,
        user,
        links=[
            *(link(21 + each, -10, each, 3, each) for each in range(4)),
            link(25, 3, 0, -20, 0),
        ],
        inputs=[("model", [21]), ("clip", [22]), ("text", [23]), ("seed", [24])],
        outputs=[("IMAGE", [25])],
    )
    file = using(*values, properties={} if promoted is None else {"proxyWidgets": promoted})
    file["definitions"]["subgraphs"] = [outer, inner]
    if place == "nested":
        file["definitions"]["subgraphs"] = [outer | {"definitions": {"subgraphs": [inner]}}]
    prompt = converted(file)
    assert prompt["6"]["inputs"]["images"] == ["5:3:2", 0]
    sampler = prompt["5:3:2"]["inputs"]
    assert sampler["model"] == ["4", 0]
    assert (prompt["5:3:1"]["inputs"]["text"], sampler["seed"], sampler["steps"]) == expected


def test_a_subgraph_may_pass_an_input_on() -> None:
    passing = subgraph(
        OUTER, links=[link(11, -10, 0, -20, 0)], inputs=[("m", [11])], outputs=[("m", [11])]
    )
    links = [[1, 5, 0, 3, 0, "MODEL"], [2, 1, 0, 5, 0, "MODEL"]]
    file = sampled(node(5, OUTER, m=2), links=links, definitions={"subgraphs": [passing]})
    assert inputs_of(file, "3")["model"] == ["1", 0]


def test_a_getter_in_a_subgraph_finds_a_setter_around_it() -> None:
    getting = subgraph(
        OUTER,
        node(1, "GetNode", "m"),
        links=[link(11, 1, 0, -20, 0)],
        inputs=[],
        outputs=[("m", [11])],
    )
    file = sampled(
        node(5, OUTER),
        node(6, "SetNode", "m", MODEL=2),
        links=[[1, 5, 0, 3, 0, "MODEL"], [2, 1, 0, 6, 0, "MODEL"]],
        definitions={"subgraphs": [getting]},
    )
    assert inputs_of(file, "3")["model"] == ["1", 0]


def test_a_promoted_primitive_has_the_value_of_the_node() -> None:
    holding = subgraph(
        OUTER,
        node(1, "PrimitiveNode", 5, "fixed"),
        node(2, "Sampler", 1, "fixed", 2, "euler", steps=11),
        links=[link(11, 1, 0, 2, 0), link(12, 2, 0, -20, 0)],
        inputs=[],
        outputs=[("IMAGE", [12])],
    )
    user = node(5, OUTER, 9) | {"properties": {"proxyWidgets": [["1", "value"]]}}
    file = file_of(user, links=[], definitions={"subgraphs": [holding]})
    assert inputs_of(file, "5:2")["steps"] == 9


@pytest.mark.parametrize("uses", [1, 2])
def test_a_subgraph_in_itself_is_refused(uses: int) -> None:
    users = [node(each, OUTER) for each in range(uses)]
    endless = subgraph(OUTER, *users, links=[], inputs=[], outputs=[])
    with pytest.raises(GraphInvalid, match="too large or nested too deeply"):
        converted(file_of(node(1, OUTER), links=[], definitions={"subgraphs": [endless]}))


def test_a_long_chain_of_reroutes_to_inputs_of_many_types_is_refused() -> None:
    chain = [node(n, "Reroute", **{"": n - 1}) for n in range(2, 502)]
    end = node(1000, "Loader", "a.st") | {
        "inputs": [{"name": "a", "type": f"T{n}", "link": 501} for n in range(300)]
    }
    links = [link(n, n, 0, n + 1, 0) for n in range(1, 502)]
    file = file_of(node(1, "Loader", "a.st"), *chain, end, links=links)
    with pytest.raises(GraphInvalid, match="too many links"):
        converted(file)


def test_a_small_file_does_not_become_a_large_graph() -> None:
    names = "abcdef"
    inner = subgraph(
        "g", *[node(n, "Number", 1) for n in range(8)], links=[], inputs=[], outputs=[]
    )
    chained = [
        subgraph(name, *[node(n, after) for n in range(8)], links=[], inputs=[], outputs=[])
        for name, after in zip(names, f"{names[1:]}g", strict=True)
    ]
    file = file_of(node(1, "a"), links=[], definitions={"subgraphs": [*chained, inner]})
    with pytest.raises(GraphInvalid, match="too large or nested too deeply"):
        converted(file)


# ------------------------------------------------------------------------------- group nodes


def stored(node: Json) -> Json:
    return {name: each for name, each in node.items() if name != "id"}


def grouped(*values: Any, separator: str = ">", **links: int) -> Json:
    """A file with a group of a Lora, a text and a sampler, which uses an output of the Lora."""
    loras = stored(node(1, "Lora", "l.st", 1.0, model=90, clip=91))
    text = stored(node(2, "Text", "stored", clip=92))
    sampler = stored(node(3, "Sampler", 1, "fixed", 2, "euler", model=93, positive=94))
    group = {
        "nodes": [loras, text, sampler],
        "links": [
            [None, 0, 0, 0, 4, "MODEL"],
            [None, 1, 0, 1, 4, "CLIP"],
            [0, 1, 1, 0, 1, "CLIP"],
            [0, 0, 2, 0, 1, "MODEL"],
            [1, 0, 2, 1, 2, "CONDITIONING"],
        ],
        "external": [[0, 0, "MODEL"], [2, 0, "IMAGE"]],
    }
    return file_of(
        node(4, "Loader", "a.st"),
        node(5, f"workflow{separator}mine", *values, model=1, clip=2, **links),
        node(6, "Save", "x", images=3),
        links=[[1, 4, 0, 5, 0, "MODEL"], [2, 4, 1, 5, 1, "CLIP"], [3, 5, 1, 6, 0, "IMAGE"]],
        extra={"groupNodes": {"mine": group}},
    )


GROUP_VALUES = ("l.st", 0.5, "a cat", 7, "randomize", 4, "euler", False)


@pytest.mark.parametrize("separator", [">", "/"])
def test_a_group_node_becomes_its_nodes(separator: str) -> None:
    prompt = converted(grouped(*GROUP_VALUES, separator=separator))
    assert prompt.keys() == {"4", "5:0", "5:1", "5:2", "6"}
    assert prompt["5:0"]["inputs"] == {
        "model": ["4", 0],
        "clip": ["4", 1],
        "lora_name": "l.st",
        "strength": 0.5,
    }
    assert prompt["5:1"]["inputs"] == {"clip": ["5:0", 1], "text": "a cat"}
    assert prompt["5:2"]["inputs"] == {
        "model": ["5:0", 0],
        "positive": ["5:1", 0],
        "seed": 7,
        "steps": 4,
        "sampler": "euler",
        "tiled": False,
    }
    assert prompt["6"]["inputs"]["images"] == ["5:2", 0]


def test_a_widget_of_a_group_node_may_have_a_link() -> None:
    file = grouped(*GROUP_VALUES, steps=9)
    file["nodes"].append(node(8, "Number", 5, "fixed"))
    file["links"].append([9, 8, 0, 5, 2, "INT"])
    assert inputs_of(file, "5:2")["steps"] == ["8", 0]


def test_equal_names_in_a_group_have_the_title_of_their_node() -> None:
    texts = [stored(node(0, "Text", each)) | {"title": each} for each in ("one", "two")]
    for each in texts:
        each["inputs"] = [{"name": "clip", "type": "CLIP", "link": 1}]
    file = file_of(
        node(4, "Loader", "a.st"),
        node(5, "workflow>texts", "a", "b", **{"clip": 1, "two clip": 2}),
        links=[[1, 4, 1, 5, 0, "CLIP"], [2, 4, 1, 5, 1, "CLIP"]],
        extra={"groupNodes": {"texts": {"nodes": texts, "links": []}}},
    )
    prompt = converted(file)
    assert prompt["5:0"]["inputs"] == {"text": "a", "clip": ["4", 1]}
    assert prompt["5:1"]["inputs"] == {"text": "b", "clip": ["4", 1]}


def test_a_primitive_of_a_group_has_the_value_of_the_group() -> None:
    sampler = stored(node(1, "Sampler", 1, "fixed", 2, "euler"))
    sampler["inputs"] = [{"name": "steps", "type": "INT", "link": 1, "widget": {"name": "steps"}}]
    group = {
        "nodes": [stored(node(0, "PrimitiveNode", 3, "fixed")), sampler],
        "links": [[0, 0, 1, 0, 1, "INT"]],
    }
    file = file_of(
        node(5, "workflow>mine", 9, "fixed", 7, "fixed", "euler"),
        links=[],
        extra={"groupNodes": {"mine": group}},
    )
    found = inputs_of(file, "5:1")
    assert (found["seed"], found["steps"], found["sampler"]) == (7, 9, "euler")
