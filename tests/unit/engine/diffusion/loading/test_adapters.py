"""LoRAs that are added by row: which are, what they take, and jobs that share calls with them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from engine.batch_limits import BatchLimits
from engine.diffusion.adapters import Adapter, AppliedAdapter
from engine.diffusion.context import Context
from engine.diffusion.families.lookup import model_family
from engine.diffusion.loading.changes.layers import unet_layers
from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.loading.merging import AppliedLora, merged
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.diffusion.patches.free_u import FreeU, with_free_u
from engine.errors import CheckpointUnavailable
from engine.families.family import Family
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.latents import all_latents_and_images
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
    store = ModelStore(ModelsFolder(root), torch.device("cpu"), 2**30)
    unet = load_checkpoint(store, TINY).model.unet
    for name, word, rank in (
        (A, "attn", 2),
        (B, "", 1),
        (LARGE, "attn", MOST_RANK),
        (LOW, "mid_block.resnets", 1),
    ):
        save_file(lora_for(unet, word, rank), root / "loras" / name)
    return root


@pytest.fixture
def store(root: Path) -> ModelStore:
    return ModelStore(ModelsFolder(root, ttl_s=0), torch.device("cpu"), 2**30)


@pytest.fixture
def base(store: ModelStore) -> Checkpoint:
    return load_checkpoint(store, TINY)


def lora_for(unet: nn.Module, word: str, rank: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(rank)
    for name, layer in unet.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and word in name:
            out, *rest = layer.weight.shape
            key = f"lora_unet_{name.replace('.', '_')}"
            down = torch.randn(rank, *rest, generator=generator)
            up = torch.randn(out, rank, *[1] * (len(rest) - 1), generator=generator)
            tensors[f"{key}.lora_down.weight"] = down * 0.1
            tensors[f"{key}.lora_up.weight"] = up * 0.1
            tensors[f"{key}.alpha"] = torch.tensor(rank * 1.5)
    return tensors


def applied(store: ModelStore, unet: Any, loras: Loras) -> Networks:
    networks = Networks(unet, model_family(Family.SD1))
    for name, strength in loras:
        networks = with_lora(store, name, networks, unet_strength=strength, text_strength=0.0)
    return networks


def with_merged(store: ModelStore, unet: Any, loras: Loras) -> Any:
    """The UNet with these merged, whatever their rank."""
    paths = [(store.models.path("loras", name), strength) for name, strength in loras]
    files = tuple(AppliedLora(path, store.identity(path), strength) for path, strength in paths)
    return merged(store, unet, files, unet_layers(unet)) if files else unet


def answer(unet: Any, x: Tensor) -> Tensor:
    tokens = torch.randn(len(x), 77, 64, generator=torch.Generator().manual_seed(1))
    found: Tensor = unet(x, torch.full((len(x),), 500), tokens, return_dict=False)[0]
    return found


@torch.inference_mode()
def test_each_row_is_as_with_merged_weights(store: ModelStore, base: Checkpoint) -> None:
    unet, x = base.model.unet, torch.randn(1, 4, 8, 8).expand(len(MIXED), -1, -1, -1)
    networks = [applied(store, unet, loras) for loras in MIXED]
    assert all(each.unet is unet for each in networks)
    with unet.row_updates.of([each.adapters for each in networks], [1] * len(MIXED)):
        found = answer(unet, x)
    for row, loras in enumerate(MIXED):
        expected = answer(with_merged(store, unet, loras), x)[row]
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-4)
    assert (found[1:] - found[0]).abs().amax((1, 2, 3)).min() > 0.01


def test_memory_is_that_of_the_base_and_of_each_file_once(
    store: ModelStore, base: Checkpoint
) -> None:
    before = store.size_bytes
    networks = [applied(store, base.model.unet, loras) for loras in MIXED]
    a, b = networks[1].adapters[0].adapter, networks[3].adapters[0].adapter
    assert [each.adapter for each in networks[4].adapters] == [a, b]
    assert networks[2].adapters[0].adapter is a
    assert store.size_bytes == before + 4 * (a.size + b.size)
    assert not store.free_unused()
    assert applied(store, base.model.unet, MIXED[1]).adapters[0].adapter is a
    del networks, a, b
    assert store.free_unused()
    assert store.size_bytes == before


def test_the_limits_that_remember_a_load_keep_no_model_in_memory(tmp_path: Path) -> None:
    store = ModelStore(ModelsFolder(tmp_path), torch.device("cpu"), 0)
    context = Context(store, on_steps=lambda _: None, input_files={}, limits=Limits())
    adapter = Adapter(tmp_path, ("", 0, 0), {})
    model = Model(
        nn.Linear(1, 1), model_family(Family.SD1), 1.0, adapters=(AppliedAdapter(adapter, 1.0),)
    )
    works = [context.lora(A, model, None, model_strength=1.0, clip_strength=0.0) for _ in range(2)]
    first, second = (next(work) for work in works)
    assert first.key == second.key  # one load serves both
    limits = BatchLimits(32)
    with limits.measured(first.key, first.rows):
        watched = [weakref.ref(each) for each in (model.unet, adapter)]
    del adapter, model, works, first, second
    gc.collect()
    assert [each() for each in watched] == [None, None]


def test_a_rank_that_is_not_low_is_merged_with_those_before_it(
    store: ModelStore, base: Checkpoint
) -> None:
    unet = base.model.unet
    loras = ((A, 0.5), (LARGE, 0.8))
    found = applied(store, unet, loras)
    assert found.adapters == ()
    assert found.unet is with_merged(store, unet, loras)
    more = applied(store, found.unet, ((B, 1.0),))
    assert more.adapters == ()
    assert more.unet is with_merged(store, unet, (*loras, (B, 1.0)))


def test_many_that_are_not_low_together_are_merged(store: ModelStore, base: Checkpoint) -> None:
    counts = [len(applied(store, base.model.unet, ((A, 1.0),) * n).adapters) for n in range(12)]
    assert counts[:3] == [0, 1, 2]
    assert counts[-1] == 0


def test_more_than_eight_are_merged_however_low_they_are(
    store: ModelStore, base: Checkpoint
) -> None:
    counts = [len(applied(store, base.model.unet, ((LOW, 1.0),) * n).adapters) for n in range(12)]
    assert counts == [*range(9), 0, 0, 0]


def test_a_patched_unet_shares_the_adapters_of_the_base(
    store: ModelStore, base: Checkpoint
) -> None:
    patched = with_free_u(base.model, FreeU(1.1, 1.2, 0.9, 0.2)).unet
    (one,) = applied(store, base.model.unet, MIXED[1]).adapters
    found = applied(store, patched, MIXED[1])
    assert found.unet is patched
    assert found.adapters[0].adapter is one.adapter


def test_a_file_that_was_replaced_is_another_adapter(
    store: ModelStore, base: Checkpoint, root: Path
) -> None:
    path = root / "loras" / "new.safetensors"
    for rank, change in ((1, 1.0), (2, 2.0)):
        save_file(lora_for(base.model.unet, "attn1.to_q", rank), path)
        (found,) = applied(store, base.model.unet, ((path.name, change),)).adapters
        layers = found.adapter.layers.values()
        assert {update.size for updates in layers for update in updates} == {rank * 64, rank * 128}


@pytest.mark.parametrize(
    ("down", "up"), [((2, 32), (32, 3)), ((32, 2), (2, 32)), ((1024,), (1,)), ((0, 32), (32, 0))]
)
def test_matrices_that_do_not_fit_are_refused_before_any_call(
    down: tuple[int, ...], up: tuple[int, ...], store: ModelStore, base: Checkpoint, root: Path
) -> None:
    key = "unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
    tensors = {f"{key}.lora_A.weight": torch.ones(down), f"{key}.lora_B.weight": torch.ones(up)}
    save_file(tensors, root / "loras" / "bad.safetensors")
    with pytest.raises(CheckpointUnavailable, match=r"bad.*to_q.*\(32, 32\)"):
        applied(store, base.model.unet, (("bad.safetensors", 1.0),))


def drawing(loras: Loras, seed: int) -> dict[str, Any]:
    prompt = text_to_image(seed=seed)
    for at, (name, strength) in enumerate(loras):
        before = [f"m{at - 1}", 0] if at else ["4", 0]
        prompt[f"m{at}"] = node(
            "LoraLoaderModelOnly", model=before, lora_name=name, strength_model=strength
        )
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
        together = all_latents_and_images(prompts, catalogue)
    # Those that are ready first wait for nobody.
    assert max(rows) == 2 * len(prompts)
    assert sum(rows) == 4 * 2 * len(prompts)
    for prompt, (_, (image,)) in zip(prompts, together, strict=True):
        ((_, (alone,)),) = all_latents_and_images([prompt], catalogue)
        assert np.abs(image.astype(int) - alone.astype(int)).max() <= 1
    pictures = {image.tobytes() for _, (image,) in together}
    assert len(pictures) == len(prompts)
