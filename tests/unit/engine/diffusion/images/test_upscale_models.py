"""Upscale models in the layouts in which they are published, and their tiles."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.upscale_models import (
    Compact,
    Rrdb,
    Upscale,
    UpscaleNetwork,
    read_upscale_model,
)
from engine.errors import CheckpointUnavailable, OutOfMemory, TooLarge
from engine.graph.limits import Limits
from tests.support.engine.bodies import outputs_of
from tests.support.engine.engines import running
from tests.support.engine.workflows import node

CPU = torch.device("cpu")
Rename = Callable[[str, int, int], str]
NETWORKS = {
    "4x": lambda: Rrdb(features=8, growth=4, blocks=2, doublings=2, unshuffle=1),
    "2x, unshuffled": lambda: Rrdb(features=8, growth=4, blocks=2, doublings=2, unshuffle=2),
    "1x": lambda: Rrdb(features=8, growth=4, blocks=1, doublings=0, unshuffle=1),
    "compact": lambda: Compact(features=8, depth=3, scale=3),
}


def renamed(layer: str, dense: str, fixed: dict[str, str]) -> str | None:
    """The name of a layer, by a format for layers of blocks and the names of others."""
    if match := re.fullmatch(r"body\.(\d+)\.(\d)\.convolutions\.(\d)", layer):
        block, part, convolution = (int(each) for each in match.groups())
        return dense.format(block, part + 1, convolution + 1)
    return fixed.get(layer)


def esrgan_first(name: str, blocks: int, ends: int) -> str:
    """The names of ESRGAN's first code, which counts activations and upsampling as layers too."""
    numbers = {f"ends.{n}": 3 * n + 3 for n in range(ends - 1)}
    numbers |= {f"ends.{ends - 1}": 3 * ends - 1, "last": 3 * ends + 1}
    layer, kind = name.rsplit(".", 1)
    fixed = {"first": "model.0", "body_end": f"model.1.sub.{blocks}"}
    found = renamed(layer, "model.1.sub.{}.RDB{}.conv{}.0", fixed) or f"model.{numbers[layer]}"
    return f"{found}.{kind}"


def esrgan_second(name: str, blocks: int, ends: int) -> str:
    layer, kind = name.rsplit(".", 1)
    fixed = {"first": "conv_first", "body_end": "trunk_conv", "last": "conv_last"}
    fixed[f"ends.{ends - 1}"] = "HRconv"
    found = renamed(layer, "RRDB_trunk.{}.RDB{}.conv{}", fixed) or f"upconv{int(layer[5:]) + 1}"
    return f"{found}.{kind}"


def real_esrgan(name: str, blocks: int, ends: int) -> str:
    layer, kind = name.rsplit(".", 1)
    fixed = {"first": "conv_first", "body_end": "conv_body", "last": "conv_last"}
    fixed[f"ends.{ends - 1}"] = "conv_hr"
    found = renamed(layer, "body.{}.rdb{}.conv{}", fixed) or f"conv_up{int(layer[5:]) + 1}"
    return f"params_ema.{found}.{kind}"


def as_it_is(name: str, blocks: int, ends: int) -> str:
    return name


def written(network: UpscaleNetwork, path: Path, rename: Rename) -> Path:
    blocks = len(network.body) if isinstance(network, Rrdb) else 0
    ends = len(network.ends) if isinstance(network, Rrdb) else 0
    weights = network.state_dict()
    path.parent.mkdir(exist_ok=True, parents=True)
    save_file({rename(name, blocks, ends): each.half() for name, each in weights.items()}, path)
    return path


@pytest.mark.parametrize(
    ("kind", "rename"),
    [
        *product(("4x", "2x, unshuffled", "1x"), (esrgan_first, esrgan_second, real_esrgan)),
        ("compact", as_it_is),
    ],
)
def test_a_network_follows_from_its_weights(kind: str, rename: Rename, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network = NETWORKS[kind]()
    found = read_upscale_model(written(network, tmp_path / "x.safetensors", rename), CPU)
    assert type(found) is type(network)
    pixels = torch.rand(1, 3, 9, 11)
    network.half().float()
    with torch.inference_mode():
        assert torch.equal(found(pixels), network(pixels))
        assert found(pixels).shape[-2:] == (9 * network.scale, 11 * network.scale)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ({"some.weight": torch.zeros(3)}, "not an upscale model of a supported kind"),
        ({"conv_first.weight": torch.zeros(8, 3, 3, 3)}, "damaged"),
        ({"body.0.weight": torch.zeros(8, 3, 3, 3), "body.1.weight": torch.zeros(8)}, "damaged"),
        ({"conv_first.weight": torch.zeros(8, 3, 3, 3), "conv_last.x": torch.zeros(1)}, "damaged"),
        *(
            ({f"body.{n}.weight": torch.zeros(8) for n in (0, 1, last)}, "3 weights")
            for last in (3, 10**12)
        ),
        (
            {
                "conv_first.weight": torch.zeros(8, 3, 3, 3),
                "body.0.rdb1.conv1.weight": torch.zeros(8),
                f"body.{10**12}.rdb1.conv1.weight": torch.zeros(8),
                "conv_last.weight": torch.zeros(8),
                "conv_last.bias": torch.zeros(8),
            },
            "have only 5 weights",
        ),
    ],
)
def test_a_foreign_or_incomplete_file_is_refused(
    weights: dict[str, Tensor], reason: str, tmp_path: Path
) -> None:
    save_file(weights, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointUnavailable, match=reason):
        read_upscale_model(tmp_path / "x.safetensors", CPU)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = written(NETWORKS["4x"](), tmp_path / "x.safetensors", real_esrgan)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointUnavailable, match="damaged"):
        read_upscale_model(path, CPU)


class Nearest(UpscaleNetwork):
    """Repeats pixels; runs out of memory for tiles of more than `room` pixels."""

    scale = 2

    def __init__(self, room: int = 2**30) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.room = room
        self.seen: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] * images.shape[-2] > self.room:
            raise torch.OutOfMemoryError
        self.seen.append(tuple(images.shape[-2:]))
        return functional.interpolate(images, scale_factor=2, mode="nearest")


def enlarged(network: UpscaleNetwork, images: Tensor, **options: Any) -> Tensor:
    (out,) = outputs_of("ImageUpscaleWithModel", upscale_model=network, image=images, **options)
    found: Tensor = out
    return found


@pytest.mark.parametrize("size", [(40, 30), (600, 40), (513, 1000)])
def test_tiles_make_one_image(size: tuple[int, int]) -> None:
    network, images = Nearest(), torch.rand(2, *size, 3)
    expected = images.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.allclose(enlarged(network, images), expected, atol=1e-6)
    assert max(max(each) for each in network.seen) <= 512


def test_where_memory_is_short_tiles_are_smaller() -> None:
    network, images = Nearest(room=200 * 200), torch.rand(1, 300, 300, 3)
    expected = images.repeat_interleave(2, 1).repeat_interleave(2, 2)
    assert torch.allclose(enlarged(network, images), expected, atol=1e-6)
    assert max(network.seen) == (128, 128)
    with pytest.raises(OutOfMemory):
        enlarged(Nearest(room=100 * 100), images)


def test_levels_stay_between_0_and_1() -> None:
    found = enlarged(Nearest(), torch.tensor([-1.0, 2.0])[None, :, None, None].expand(1, 2, 1, 3))
    assert (float(found.min()), float(found.max())) == (0, 1)


def test_an_enlarged_image_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(TooLarge, match="80 x 82"):
        enlarged(Nearest(), torch.zeros(1, 41, 40, 3), limits=Limits(max_pixels=80 * 81))


def test_tiles_of_one_size_share_a_call() -> None:
    network = Nearest()
    one, other = (Upscale(network, torch.rand(1, 3, 64, 64)) for _ in range(2))
    assert one.key == other.key
    assert (one.rows, Upscale(network, torch.rand(1, 3, 512, 512)).rows) == (1, 32)
    first, second = Upscale.run_batch([one, other])
    assert torch.equal(second, network(other.tile))
    assert first.shape == (1, 3, 128, 128)


def test_a_workflow_enlarges_an_image(tmp_path: Path) -> None:
    written(NETWORKS["compact"](), tmp_path / "upscale_models" / "x3.safetensors", as_it_is)
    prompt = {
        "1": node("EmptyImage", width=24, height=16, batch_size=2, color=0x804020),
        "2": node("UpscaleModelLoader", model_name="x3.safetensors"),
        "3": node("ImageUpscaleWithModel", upscale_model=["2", 0], image=["1", 0]),
        "4": node("PreviewImage", images=["3", 0]),
    }
    with running(tmp_path) as engine:
        images = engine.submit(prompt).images()
    assert [image.pixels.shape for image in images] == [(48, 72, 3)] * 2


def webui_enlarged(network: UpscaleNetwork, width: int, height: int) -> Tensor:
    inputs = {"upscale_model": network, "image": torch.rand(1, 32, 32, 3)}
    (found,) = outputs_of("WebUIImageUpscale", **inputs, width=width, height=height)
    return cast("Tensor", found)


@pytest.mark.parametrize(
    ("size", "times"), [((32, 32), 0), ((33, 20), 1), ((64, 64), 1), ((65, 64), 2), ((999, 999), 3)]
)
def test_the_webui_enlarges_until_the_size_is_reached(size: tuple[int, int], times: int) -> None:
    found = webui_enlarged(Nearest(), *size)
    assert found.shape[1:3] == (32 * 2**times, 32 * 2**times)


def test_a_network_that_enlarges_nothing_is_applied_once() -> None:
    network = Nearest()
    network.forward = lambda images: images  # type: ignore[method-assign]  # a restoring network
    network.scale = 1
    assert webui_enlarged(network, 64, 64).shape[1:3] == (32, 32)
