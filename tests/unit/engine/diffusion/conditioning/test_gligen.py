"""GLIGEN: its tokens and layers, the files that are refused, and workflows with boxes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file

from engine.diffusion.conditioning.condition import Area, Condition, in_box, with_shared_grounding
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.conditioning.gligen import (
    MOST_BOXES,
    Grounding,
    TextBox,
    grounded,
    read_gligen,
    with_box,
)
from engine.diffusion.loading.layers import use_plain_attention
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.errors import CheckpointUnavailable, EngineError, GraphInvalid, InputsInvalid
from engine.families.recognition import problems_of
from engine.graph.models_folder import GLIGENS, ModelsFolder
from tests.support.engine.engines import Running, running
from tests.support.engine.gligens import tiny_gligen, write_gligen
from tests.support.engine.graphs import cost_of
from tests.support.engine.latents import farthest
from tests.support.engine.workflows import Prompt, node, text_to_image
from training.make_tiny import UNET
from training.tiny_families import write_family

CPU = torch.device("cpu")


def box(seed: int = 1, width: int = 64) -> TextBox:
    generator = torch.Generator().manual_seed(seed)
    return TextBox(torch.randn(1, width, generator=generator), height=3, width=4, y=2, x=1)


def test_a_box_becomes_the_token_that_diffusers_makes_of_its_corners() -> None:
    network, one = tiny_gligen(1), box()
    found = network.tokens([one], height=6, width=10)
    net, used = network.position_net, torch.zeros(1, MOST_BOXES)
    sides, texts = torch.zeros(1, MOST_BOXES, 4), torch.zeros(1, MOST_BOXES, 64)
    used[0, 0], texts[0, 0] = 1.0, one.pooled[0]
    sides[0, 0] = torch.tensor([0.1, 2 / 6, 0.5, 5 / 6])
    assert torch.allclose(found, net(sides, used, texts))
    assert torch.equal(found[0, 1], found[0, 29])
    assert not torch.allclose(found[0, 0], found[0, 1])


def test_rows_with_and_without_boxes_share_a_call() -> None:
    torch.manual_seed(4)
    unet: Any = use_plain_attention(UNet2DConditionModel(**UNET)).eval().requires_grad_(False)
    networks = [tiny_gligen(1), tiny_gligen(2)]
    groundings = [Grounding(networks[0], (box(),)), None, Grounding(networks[1], (box(), box(2)))]
    groundings.append(Grounding(networks[0], (box(3),)))
    sizes = [1, 1, 2, 1]
    x, texts = torch.randn(5, 4, 8, 8), torch.randn(5, 7, 64)

    def output(rows: slice, own: list[Grounding | None], sizes: list[int]) -> torch.Tensor:
        with grounded(unet, own, sizes, x[rows]):
            found: torch.Tensor = unet(x[rows], 500, texts[rows], return_dict=False)[0]
        return found

    together, plain = output(slice(0, 5), groundings, sizes), output(slice(0, 5), [None], [5])
    start = 0
    for size, own in zip(sizes, groundings, strict=True):
        rows = slice(start, start + size)
        assert torch.allclose(output(rows, [own], [size]), together[rows], atol=1e-4)
        assert torch.allclose(plain[rows], together[rows], atol=1e-4) == (own is None)
        start += size
    assert not any(hasattr(each, "fuser") for each in unet.modules())


def test_the_layers_compute_what_those_of_diffusers_do() -> None:
    torch.manual_seed(4)
    sizes = {**UNET, "attention_type": "gated"}
    theirs: Any = UNet2DConditionModel(**sizes).eval().requires_grad_(False)
    network, one = tiny_gligen(1), box()
    own = network.state_dict()
    theirs.position_net.load_state_dict(network.position_net.state_dict(), strict=True)
    blocks = [each for each in theirs.modules() if hasattr(each, "fuser")]
    # The order of registration of the middle block is not that of the calls.
    middle = theirs.mid_block.attentions[0].transformer_blocks[0]
    blocks.remove(middle)
    blocks.insert(2, middle)
    for number, each in enumerate(blocks):
        start = f"fusers.{number}."
        state = {name.removeprefix(start): own[name] for name in own if name.startswith(start)}
        each.fuser.load_state_dict(state, strict=True)
    x, texts = torch.randn(1, 4, 6, 10), torch.randn(1, 7, 64)
    used, sides = torch.zeros(1, MOST_BOXES), torch.zeros(1, MOST_BOXES, 4)
    pooled = torch.zeros(1, MOST_BOXES, 64)
    used[0, 0], pooled[0, 0], sides[0, 0] = (
        1.0,
        one.pooled[0],
        torch.tensor([0.1, 1 / 3, 0.5, 5 / 6]),
    )
    given = {"gligen": {"boxes": sides, "masks": used, "positive_embeddings": pooled}}
    expected = theirs(x, 500, texts, cross_attention_kwargs=given, return_dict=False)[0]
    torch.manual_seed(4)
    unet: Any = UNet2DConditionModel(**UNET).eval().requires_grad_(False)
    missing = unet.load_state_dict(theirs.state_dict(), strict=False).missing_keys
    assert not missing
    with grounded(unet, [Grounding(network, (one,))], [1], x):
        found = unet(x, 500, texts, return_dict=False)[0]
    assert torch.allclose(found, expected, atol=1e-5)


def test_other_conditionings_get_the_boxes_of_the_positive_one() -> None:
    network = tiny_gligen(1)
    texts = [(Condition(torch.full((1, 1, 64), float(each))),) for each in range(3)]
    positive = in_box(texts[0], network, box())
    area = (Condition(torch.zeros(1, 1, 64), area=Area(2, 2, 0, 0)),)
    shared = with_shared_grounding(positive, area + texts[1] + texts[2])
    assert [each.grounding is positive[0].grounding for each in shared] == [False, True, False]
    own = in_box(texts[1], network, box(2))
    assert with_shared_grounding(positive, own) is own
    assert with_shared_grounding(positive, area) is area
    assert with_shared_grounding(texts[0], own) == own
    like = torch.zeros(1, 4, 8, 8)
    found = fitted_conditionings(positive, texts[1], like, LEVELS, more=(texts[2],))
    assert all(each.condition.grounding for (each,) in found)
    in_area = in_box(area, network, box())
    _, (whole, counterpart) = fitted_conditionings(texts[0] + in_area, texts[1], like, LEVELS)
    assert whole.condition.grounding is None
    assert counterpart.condition.grounding is in_area[0].grounding


def test_a_later_model_replaces_the_first_one_and_30_boxes_are_the_most() -> None:
    first, second = tiny_gligen(1), tiny_gligen(2)
    found = with_box(with_box(None, first, box()), second, box(2))
    assert found.network is second
    assert len(found.boxes) == 2
    full = Grounding(first, (box(),) * MOST_BOXES)
    with pytest.raises(EngineError, match="more than 30 boxes"):
        with_box(full, first, box())
    with pytest.raises(EngineError, match="has the width 32, but the GLIGEN needs 64"):
        with_box(None, first, box(width=32))


def test_a_file_is_read_in_the_order_of_the_unet(tmp_path: Path) -> None:
    network, path = tiny_gligen(1), tmp_path / "boxes.safetensors"
    write_gligen(network, path)
    found = read_gligen(path, CPU)
    for name, weight in network.state_dict().items():
        assert torch.equal(found.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"position_net.null_positive_feature": None}, "is not a GLIGEN for texts in boxes"),
        ({"position_net.linears.0.weight": torch.zeros(3)}, "is not a GLIGEN for texts in boxes"),
        ({"position_net.null_image_feature": torch.zeros(64)}, "a GLIGEN for texts and pictures"),
    ],
)
def test_other_files_are_refused(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / GLIGENS / "boxes.safetensors"
    write_gligen(tiny_gligen(1), path)
    models = ModelsFolder(tmp_path)
    assert problems_of(models, GLIGENS, path.name).whole is None
    state = {name: each for name, each in (load_file(path) | change).items() if each is not None}
    path = path.with_name("other.safetensors")
    save_file(state, path)
    models = ModelsFolder(tmp_path)
    assert why in str(problems_of(models, GLIGENS, path.name).whole)
    with pytest.raises(CheckpointUnavailable, match=why):
        read_gligen(path, CPU)


def with_boxes(*boxes: dict[str, Any], model: str = "boxes.safetensors", **sampler: Any) -> Prompt:
    prompt = text_to_image(positive=[f"b{len(boxes)}", 0] if boxes else ["6", 0], **sampler)
    prompt["gl"] = node("GLIGENLoader", gligen_name=model)
    for number, each in enumerate(boxes, 1):
        inputs = {"text": "a cat", "width": 32, "height": 24, "x": 8, "y": 16} | each
        last = ["6", 0] if number == 1 else [f"b{number - 1}", 0]
        prompt[f"b{number}"] = node(
            "GLIGENTextBoxApply",
            conditioning_to=last,
            clip=["4", 1],
            gligen_textbox_model=["gl", 0],
            **inputs,
        )
    return prompt


@pytest.fixture(scope="module")
def service(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("gligen")
    (root / "checkpoints").mkdir()
    for each in (tiny_root / "checkpoints").iterdir():
        (root / "checkpoints" / each.name).symlink_to(each)
    write_family("sdxl", root / "checkpoints" / "sdxl.safetensors", root / "rest")
    for seed, name in ((1, "boxes"), (2, "other")):
        write_gligen(tiny_gligen(seed), root / GLIGENS / f"{name}.safetensors")
    save_file({"weight": torch.zeros(1)}, root / GLIGENS / "wrong.safetensors")
    with running(root) as found:
        yield found


def test_texts_in_boxes_change_the_picture_also_in_shared_calls(service: Running) -> None:
    prompts = [
        with_boxes(steps=1),
        with_boxes({}, steps=1),
        with_boxes({"text": "a dog on a road"}, steps=1),
        with_boxes({"x": 24}, steps=1),
        with_boxes({}, model="other.safetensors", steps=1),
    ]
    found = service.pictures(*prompts)
    for prompt, shared in zip(prompts, found, strict=True):
        (alone,) = service.pictures(prompt)
        assert farthest(shared, alone) <= 1
    apart = [farthest(*pair) for pair in combinations(found, 2)]
    assert min(apart) > 3, apart


def test_a_wrong_file_is_refused_before_the_run(service: Running) -> None:
    with pytest.raises(GraphInvalid, match=r"wrong\.safetensors is not a GLIGEN"):
        service.submit(with_boxes({}, model="wrong.safetensors"))


def test_a_model_of_other_widths_is_an_error_that_names_the_node(service: Running) -> None:
    prompt = with_boxes({})
    other = node("CheckpointLoaderSimple", ckpt_name="sdxl.safetensors")
    texts = {"positive": ["b1", 0], "negative": ["x7", 0]}
    prompt |= {"x": other, "x7": node("CLIPTextEncode", text="", clip=["x", 1])}
    prompt["6"]["inputs"]["clip"] = ["x", 1]
    prompt["3"]["inputs"] |= {"model": ["x", 0], **texts}
    error = service.submit(prompt).error(InputsInvalid)
    assert (error.code, error.node_id) == ("invalid_input", "3")
    assert "the GLIGEN is for another model" in str(error)


def test_boxes_cost_once(service: Running) -> None:
    none, one, two = (
        cost_of(with_boxes(*[{}] * number), service.catalogue).work for number in range(3)
    )
    assert none * 1.1 < one
    assert two < one * 1.05
