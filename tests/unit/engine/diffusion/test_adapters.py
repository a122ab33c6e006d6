"""LoRAs that are added by row: their layers, their memory, and jobs that share calls."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from engine.batch_limits import BatchLimits
from engine.diffusion.adapters import (
    Adapter,
    Adapters,
    AppliedAdapter,
    Kronecker,
    LowRank,
    RowUpdates,
    UpdatedConv2d,
    use_row_updates,
)
from engine.diffusion.families.family_lookup import model_family
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.layers import CrossAttentionCache, CrossAttentionLinear, use_one_dnn
from engine.diffusion.loading.lora import AppliedLora, Networks, merged, with_lora
from engine.diffusion.loading.lora_layers import unet_layers
from engine.diffusion.model import Model
from engine.diffusion.patches.variants import FreeU, with_free_u
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.engines import running
from tests.support.engine.latents import all_latents_and_images, farthest
from tests.support.engine.loras import flat, layer_pairs, with_alpha
from tests.support.engine.stores import context_of, store_of
from tests.support.engine.workflows import TINY, node, text_to_image

A, B, LARGE, LOW = (f"{name}.safetensors" for name in ("a", "b", "large", "low"))
MOST_RANK = 64
Loras = Sequence[tuple[str, float]]
MIXED: tuple[Loras, ...] = ((), ((A, 0.7),), ((A, -0.4),), ((B, 1.0),), ((A, 0.7), (B, 0.5)))


@pytest.fixture(scope="module")
def root(tiny_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with LoRAs for the attention, for all layers, of a rank that is not low, and so low
    beside the layers that many are small together.
    """
    root = tmp_path_factory.mktemp("adapters")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    (root / "loras").mkdir()
    store = store_of(root)
    unet = load_checkpoint(store, TINY).model.unet
    for name, word, rank in (
        (A, "attn", 2),
        (B, "", 1),
        (LARGE, "attn", MOST_RANK),
        (LOW, "mid_block.resnets", 1),
    ):
        save_file(lora_for(unet, word, rank), root / "loras" / name)
    return root


def lora_for(unet: nn.Module, word: str, rank: int) -> dict[str, Tensor]:
    pairs = layer_pairs(unet, word, seed=rank, rank=rank)
    return with_alpha(pairs, flat("lora_unet_"), rank * 1.5)


class Rig:
    """A store, the UNet of its checkpoint, and what LoRAs make of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, store_of(root)
        self.base = load_checkpoint(self.store, TINY)
        self.model, self.unet = self.base.model, self.base.model.unet

    def applied(self, *loras: tuple[str, float], unet: Any = None) -> Networks:
        networks = Networks(unet or self.unet, self.model.family)
        for name, change in loras:
            networks = with_lora(
                self.store, name, networks, unet_strength=change, text_strength=0.0
            )
        return networks

    def merged(self, *loras: tuple[str, float]) -> Any:
        """The UNet with these merged, whatever their rank."""
        paths = [(self.store.models.path("loras", name), strength) for name, strength in loras]
        files = tuple(AppliedLora(path, self.store.identity(path), at) for path, at in paths)
        layers = unet_layers(self.unet)
        return merged(self.store, self.unet, files, layers) if files else self.unet


@pytest.fixture
def rig(root: Path) -> Rig:
    return Rig(root)


def answer(unet: Any, x: Tensor) -> Tensor:
    tokens = torch.randn(len(x), 77, 64, generator=torch.Generator().manual_seed(1))
    found: Tensor = unet(x, torch.full((len(x),), 500), tokens, return_dict=False)[0]
    return found


@torch.inference_mode()
def test_each_row_is_as_with_merged_weights(rig: Rig) -> None:
    unet, x = rig.unet, torch.randn(1, 4, 8, 8).expand(len(MIXED), -1, -1, -1)
    networks = [rig.applied(*loras) for loras in MIXED]
    assert all(each.unet is unet for each in networks)
    with unet.row_updates.applied([each.adapters for each in networks], [1] * len(MIXED)):
        found = answer(unet, x)
    for row, loras in enumerate(MIXED):
        expected = answer(rig.merged(*loras), x)[row]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)
    assert (found[1:] - found[0]).abs().amax((1, 2, 3)).min() > 0.01


def test_memory_is_that_of_the_base_and_of_each_file_once(rig: Rig) -> None:
    before = rig.store.size_bytes
    networks = [rig.applied(*loras) for loras in MIXED]
    a, b = networks[1].adapters[0].adapter, networks[3].adapters[0].adapter
    assert [each.adapter for each in networks[4].adapters] == [a, b]
    assert networks[2].adapters[0].adapter is a
    assert rig.store.size_bytes == before + 4 * (a.size + b.size)
    assert not rig.store.free_unused()
    assert rig.applied((A, 0.7)).adapters[0].adapter is a
    del networks, a, b
    assert rig.store.free_unused()
    assert rig.store.size_bytes == before


def test_the_limits_that_remember_a_load_keep_no_model_in_memory(tmp_path: Path) -> None:
    context, adapter = context_of(store_of(tmp_path, 0)), Adapter(tmp_path, ("", 0, 0), {})
    applied = (AppliedAdapter(adapter, 1.0),)
    model = Model(nn.Linear(1, 1), model_family(Family.SD1), 1.0, adapters=applied)
    works = [context.lora(A, model, None, model_strength=1.0, clip_strength=0.0) for _ in range(2)]
    first, second = (next(work) for work in works)
    assert first.key == second.key  # one load serves both
    limits = BatchLimits(32)
    with limits.measured(first.key, first.rows):
        watched = [weakref.ref(each) for each in (model.unet, adapter)]
    del adapter, applied, model, works, first, second
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_a_rank_that_is_not_low_is_merged_with_those_before_it(rig: Rig) -> None:
    loras = ((A, 0.5), (LARGE, 0.8))
    found = rig.applied(*loras)
    more = rig.applied((B, 1.0), unet=found.unet)
    assert found.adapters == more.adapters == ()
    assert found.unet is rig.merged(*loras)
    assert more.unet is rig.merged(*loras, (B, 1.0))


def test_many_are_merged_once_they_are_not_low_together_or_more_than_eight(rig: Rig) -> None:
    def count(name: str, loads: int) -> int:
        return len(rig.applied(*[(name, 1.0)] * loads).adapters)

    assert [count(A, loads) for loads in (0, 1, 2, 11)] == [0, 1, 2, 0]
    assert [count(LOW, loads) for loads in range(12)] == [*range(9), 0, 0, 0]


def test_a_patched_unet_shares_the_adapters_of_the_base(rig: Rig) -> None:
    patched = with_free_u(rig.model, FreeU(1.1, 1.2, 0.9, 0.2)).unet
    (one,) = rig.applied((A, 0.7)).adapters
    found = rig.applied((A, 0.7), unet=patched)
    assert found.unet is patched
    assert found.adapters[0].adapter is one.adapter


def test_a_file_that_was_replaced_is_another_adapter(rig: Rig) -> None:
    path = rig.root / "loras" / "new.safetensors"
    for rank in (1, 2):
        save_file(lora_for(rig.unet, "attn1.to_q", rank), path)
        (found,) = rig.applied((path.name, float(rank))).adapters
        layers = found.adapter.layers.values()
        assert {update.size for updates in layers for update in updates} == {rank * 64, rank * 128}


def drawing(loras: Loras, seed: int) -> dict[str, Any]:
    prompt = text_to_image(seed=seed, steps=2)
    for at, (name, strength) in enumerate(loras):
        before = [f"m{at - 1}", 0] if at else ["4", 0]
        lora = {"lora_name": name, "strength_model": strength}
        prompt[f"m{at}"] = node("LoraLoaderModelOnly", model=before, **lora)
        prompt["3"]["inputs"]["model"] = [f"m{at}", 0]
    return prompt


@contextmanager
def unet_rows() -> Iterator[list[int]]:
    """The rows of each call of a UNet, meanwhile."""
    rows: list[int] = []

    def note(network: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(network, UNet2DConditionModel):
            rows.append(len(inputs[0]))

    hook = register_module_forward_pre_hook(note)
    try:
        yield rows
    finally:
        hook.remove()


def test_jobs_with_different_loras_and_none_share_their_calls(root: Path) -> None:
    catalogue = Catalogue(ModelsFolder(root))
    # Two of each, which do not follow one another.
    prompts = [drawing(loras, seed) for seed in (1, 2) for loras in MIXED]
    with unet_rows() as rows:
        together = [image for _, (image,) in all_latents_and_images(prompts, catalogue)]
    # Those that are ready first wait for nobody.
    assert max(rows) == 2 * len(prompts)
    assert sum(rows) == 2 * 2 * len(prompts)
    with running(root) as engine:
        alone = [engine.pictures(prompt)[0] for prompt in prompts]
    assert max(map(farthest, together, alone)) <= 1
    assert len({each.tobytes() for each in together}) == len(prompts)


SIZES = (1, 2, 1, 3)
ROWS = sum(SIZES)
NAME = "block.attn2.to_k"


def convolution(**options: int) -> nn.Module:
    return nn.Conv2d(6, 5, **{"kernel_size": 3, **options})


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "linear of vectors": (lambda: nn.Linear(6, 5), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 5, bias=False), (4, 6)),
    "convolution": (lambda: convolution(padding=1), (6, 8, 7)),
    "convolution without bias": (lambda: nn.Conv2d(6, 5, 3, bias=False), (6, 8, 7)),
    "convolution with a stride": (lambda: convolution(padding=1, stride=2), (6, 8, 7)),
    "convolution with gaps": (lambda: convolution(padding=2, dilation=2), (6, 8, 7)),
    "convolution of points": (lambda: convolution(kernel_size=1), (6, 8, 7)),
}


class Network(nn.Module):
    """One layer, which has the name of one that a UNet has."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"attn2": nn.ModuleDict({"to_k": layer})})
        self.row_updates: RowUpdates

    @property
    def layer(self) -> nn.Module:
        return self.get_submodule(NAME)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


def updated(layer: nn.Module) -> Network:
    network = Network(layer).requires_grad_(False)
    use_row_updates(network)
    return network


def adapter(weight: Tensor, seed: int, rank: int = 2) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, *weight.shape[1:], generator=generator)
    up = torch.randn(len(weight), rank, generator=generator)
    return Adapter(Path("x"), ("x", 0, 0), {NAME: (LowRank(down, up),)})


def with_merged_weight(layer: nn.Module, adapters: Adapters) -> nn.Module:
    """A copy of the layer with these in its weight."""
    copied = copy.deepcopy(layer)
    for each in adapters:
        for update in each.adapter.layers[NAME]:
            copied.weight += each.strength * update.dense().reshape(copied.weight.shape)
    return copied


def row_by_row(layer: nn.Module, x: Tensor, adapters: Sequence[Adapters]) -> Tensor:
    parts = zip(x.split(SIZES), adapters, strict=True)
    return torch.cat([with_merged_weight(layer, own)(part) for part, own in parts])


def assert_rows_have_own_weights(plain: nn.Module, x: Tensor, adapters: Sequence[Adapters]) -> None:
    network = updated(copy.deepcopy(plain))
    with network.row_updates.applied(adapters, SIZES):
        found = network(x)
    torch.testing.assert_close(found, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)
    assert torch.equal(network(x), plain(x))


def mixed(weight: Tensor) -> list[Adapters]:
    """None, one, another with the first at another strength, and the first beside no second."""
    first, second = (adapter(weight, seed, rank) for seed, rank in ((1, 2), (2, 3)))
    one, none = AppliedAdapter(first, 0.7), AppliedAdapter(second, 0.0)
    return [(), (one,), (AppliedAdapter(second, 1.0), AppliedAdapter(first, -0.4)), (one, none)]


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_are_as_if_each_had_weights_of_its_own(kind: str) -> None:
    make, shape = LAYERS[kind]
    plain = make().requires_grad_(False)
    assert_rows_have_own_weights(plain, torch.randn(ROWS, *shape), mixed(plain.weight))


@pytest.mark.parametrize("shape", [(4, 6), (6,)])
def test_rows_may_have_a_kronecker_product_beside_others(shape: tuple[int, ...]) -> None:
    plain = nn.Linear(6, 5).requires_grad_(False)
    product = Kronecker(torch.randn(5, 3), torch.randn(1, 2))
    one = AppliedAdapter(Adapter(Path("y"), ("y", 0, 0), {NAME: (product,)}), 0.6)
    other = AppliedAdapter(adapter(plain.weight, 1), 0.7)
    adapters: list[Adapters] = [(one,), (), (other,), (other, one)]
    assert_rows_have_own_weights(plain, torch.randn(ROWS, *shape), adapters)


def test_a_layer_may_get_the_tokens_of_all_rows_one_after_the_other() -> None:
    plain, tokens = nn.Linear(6, 5).requires_grad_(False), (2, 1, 3, 2, 4, 1, 2)
    network, adapters = updated(copy.deepcopy(plain)), mixed(plain.weight)
    x = torch.randn(sum(tokens), 6)
    with network.row_updates.applied(adapters, SIZES, {NAME: tokens}):
        found = network(x)
    ends = [slice(0, 2), slice(2, 6), slice(6, 8), slice(8, 15)]
    wanted = [
        with_merged_weight(plain, own)(x[end]) for own, end in zip(adapters, ends, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-5, atol=1e-5)


def test_a_convolution_may_have_another_memory_format() -> None:
    plain = convolution(padding=1).to(memory_format=torch.channels_last).requires_grad_(False)
    x = torch.randn(ROWS, 6, 8, 7).to(memory_format=torch.channels_last)
    assert_rows_have_own_weights(plain, x, mixed(plain.weight))


def test_the_layers_of_one_dnn_are_updated_and_keep_what_they_made_of_the_texts() -> None:
    cache = CrossAttentionCache()
    network = use_one_dnn(Network(nn.Linear(6, 5)).requires_grad_(False), cache)
    use_row_updates(network)
    assert type(network.layer) is CrossAttentionLinear
    plain = nn.Linear(6, 5).requires_grad_(False)
    plain.weight, plain.bias = network.layer.weight, network.layer.bias
    texts, adapters = [torch.randn(1, 4, 6) for _ in SIZES], mixed(plain.weight)

    def keys(own: Sequence[Adapters]) -> Tensor:
        with network.row_updates.applied(own, SIZES):
            return network(cache.join_texts(texts, SIZES, 4, adapters=own))

    first = keys(adapters)
    x = cache.join_texts(texts, SIZES, 4)
    torch.testing.assert_close(first, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)
    again = keys(adapters)
    assert keys(adapters) is again
    assert torch.equal(again, first)
    others = [adapters[1], *adapters[1:]]
    torch.testing.assert_close(keys(others), row_by_row(plain, x, others), rtol=1e-5, atol=1e-5)


def test_an_adapter_that_no_job_uses_is_freed_though_texts_are_kept() -> None:
    cache = CrossAttentionCache()
    used = AppliedAdapter(adapter(torch.zeros(5, 6), 1), 1.0)
    text = torch.randn(1, 4, 6)
    first = cache.join_texts([text], [1], 4, adapters=[(used,)])
    assert cache.join_texts([text], [1], 4, adapters=[(used,)]) is first
    watched = weakref.ref(used.adapter)
    del used
    gc.collect()
    assert watched() is None
    like_it = AppliedAdapter(adapter(torch.zeros(5, 6), 1), 1.0)
    assert cache.join_texts([text], [1], 4, adapters=[(like_it,)]) is not first


def test_a_call_that_fails_leaves_no_updates_behind() -> None:
    network, x = updated(nn.Linear(6, 5)), torch.randn(2, 6)
    plain = network(x)
    own = (AppliedAdapter(adapter(network.layer.weight, 1), 1.0),)
    with pytest.raises(RuntimeError), network.row_updates.applied([own], [2]):
        network(torch.randn(2, 7))
    assert torch.equal(network(x), plain)


def test_a_copy_has_updates_of_its_own() -> None:
    network, x = updated(nn.Linear(6, 5)), torch.randn(2, 6)
    copied, plain = copy.deepcopy(network), network(x)
    own = (AppliedAdapter(adapter(network.layer.weight, 1), 1.0),)
    with copied.row_updates.applied([own], [2]):
        assert torch.equal(network(x), plain)
        assert not torch.allclose(copied(x), plain, atol=1e-2)


def test_convolutions_of_other_kinds_keep_their_way() -> None:
    for layer in (nn.Conv2d(6, 6, 3, groups=2), nn.Conv2d(6, 6, 3, padding_mode="circular")):
        assert not isinstance(updated(layer).layer, UpdatedConv2d)
