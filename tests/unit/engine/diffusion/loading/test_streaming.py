"""Weights that are streamed: which are on the device when, and what the store counts.

Here the device is the CPU too, so nothing is copied; the order of layers and the account are those
of a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.hooks.group_offloading import ModuleGroup
from torch import Tensor, nn

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.family_lookup import transformer_family
from engine.diffusion.families.model_family import Call, CallRows
from engine.diffusion.loading.checkpoints import load_diffusion_model, load_texts
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.loading.streaming import FreeMemory, stream, streamed
from engine.diffusion.patches.variants import sharing_copy
from engine.diffusion.text.encoding import FamilyTexts
from engine.errors import OutOfMemory
from engine.families.family import Family
from tests.support.engine.stores import context_of, store_of
from training.tiny_transformers import Z_IMAGE, write_z_image

NETWORK, ENCODER = "tiny-z-image.safetensors", "tiny-qwen3.safetensors"
LAYERS = 10
PLENTY = 10**12


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streaming")
    write_z_image(folder, layers=LAYERS)
    return folder


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Residents:
    """The weights that are on the device, and the most bytes of them that there were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[int, int] = {}
        self.most_bytes = 0
        self.layers: list[list[str]] = []
        """The classes of the modules of each group, in the order in which they came."""
        for name, note in (("onload_", self._came), ("offload_", self._went)):
            monkeypatch.setattr(ModuleGroup, name, self._noted(getattr(ModuleGroup, name), note))

    def _noted(
        self, method: Callable[[ModuleGroup], None], note: Callable[[ModuleGroup], None]
    ) -> Callable[[ModuleGroup], None]:
        def noted(group: ModuleGroup) -> None:
            method(group)
            note(group)

        return noted

    def _came(self, group: ModuleGroup) -> None:
        self._sizes |= {id(each): each.nbytes for each in _tensors(group)}
        self.layers.append([type(module).__name__ for module in group.modules])
        self.most_bytes = max(self.most_bytes, self.bytes)

    def _went(self, group: ModuleGroup) -> None:
        for each in _tensors(group):
            self._sizes.pop(id(each), None)

    @property
    def bytes(self) -> int:
        return sum(self._sizes.values())


def _tensors(group: ModuleGroup) -> list[Tensor]:
    of_modules = [each for module in group.modules for each in module.parameters()]
    return [*group.parameters, *group.buffers, *of_modules]


@pytest.fixture
def residents(monkeypatch: pytest.MonkeyPatch) -> Residents:
    return Residents(monkeypatch)


def store_in(root: Path, device: int | None = PLENTY, host: int = PLENTY) -> ModelStore:
    """A store with so much room on the device, or as much as it likes, and on the machine."""
    free_memory_of = None if device is None else FreeMemory(lambda: device, lambda: host)
    return store_of(root, PLENTY, free_memory_of=free_memory_of)


@pytest.fixture(scope="module")
def size(root: Path) -> int:
    return size_of(network_of(store_in(root, None)))


@pytest.fixture
def tight(root: Path, size: int) -> ModelStore:
    """A store in which the network has no room."""
    return store_in(root, size)


@pytest.fixture
def roomy(root: Path) -> ModelStore:
    return store_in(root)


def network_of(store: ModelStore) -> Any:
    return load_diffusion_model(store, NETWORK, "default").unet


def texts_of(store: ModelStore) -> FamilyTexts:
    return load_texts(store, [ENCODER])


def size_of(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters())


def velocity(network: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 8, 8, generator=generator)
    texts = [torch.randn(1, 5 * at, Z_IMAGE["cap_feat_dim"], generator=generator) for at in (1, 2)]
    parts = [CallRows(1, Condition(each)) for each in texts]
    call = Call(x, torch.tensor([0.9, 0.2]), parts, 10)
    return transformer_family(Family.Z_IMAGE).velocity(network, call)


def states(texts: Any) -> Tensor:
    found: Tensor = texts.encoder.encoded([(1, 2, 3)])[0]
    return found


def test_what_fits_stays_on_the_device(roomy: ModelStore) -> None:
    network = network_of(roomy)
    assert streamed(network) is None
    assert roomy.size_bytes == size_of(network)


def test_what_does_not_fit_is_streamed_and_computes_the_same(root: Path, tight: ModelStore) -> None:
    whole = store_in(root, None)
    network, texts = network_of(tight), texts_of(tight)
    assert streamed(network) is not None
    assert torch.equal(velocity(network), velocity(network_of(whole)))
    assert torch.equal(velocity(network), velocity(network_of(whole)))  # the order is known now
    assert torch.equal(states(texts), states(texts_of(whole)))


def test_a_layer_is_there_for_its_turn(residents: Residents, tight: ModelStore, size: int) -> None:
    network = network_of(tight)
    velocity(network)
    blocks = [each for each in residents.layers if each == ["ZImageTransformerBlock"]]
    assert len(blocks) == LAYERS + 2 * Z_IMAGE["n_refiner_layers"]
    mark = streamed(network)
    assert mark is not None
    assert 0 < residents.most_bytes <= mark.resident_bytes < size
    assert residents.bytes == 0


def test_a_streamed_model_counts_with_what_is_on_the_device(tight: ModelStore, size: int) -> None:
    mark = streamed(network := network_of(tight))
    assert mark is not None
    assert tight.size_bytes == tight.use.held_bytes == mark.resident_bytes
    assert mark.size_bytes == size_of(network) == size


def test_a_language_model_is_streamed_too(root: Path, residents: Residents) -> None:
    whole = texts_of(store_in(root, None))
    size = size_of(whole.encoder)  # type: ignore[attr-defined]  # of Z-Image
    texts: Any = texts_of(store_in(root, size))
    assert torch.equal(states(texts), states(whole))
    assert ["Qwen3DecoderLayer"] in residents.layers
    assert residents.bytes == 0


def test_models_that_no_run_uses_go_before_anything_is_streamed(root: Path, size: int) -> None:
    store = store_in(root, None)
    store.free_memory_of = FreeMemory(lambda: 2 * size - store.size_bytes, lambda: PLENTY)
    store.get_or_create("unused", lambda: nn.Linear(size // 4, 1, bias=False))
    assert streamed(network_of(store)) is None
    assert store.use.evicted == 1


def test_a_streamed_model_that_no_run_uses_is_dropped(tight: ModelStore) -> None:
    velocity(network_of(tight))
    assert tight.free_unused()
    assert (tight.size_bytes, tight.use.evicted) == (0, 1)


def test_when_memory_runs_out_the_largest_model_is_streamed_from_then_on(roomy: ModelStore) -> None:
    network, texts = network_of(roomy), texts_of(roomy)
    before, held = velocity(network), roomy.use.held_bytes
    assert not roomy.free_memory(may_stream=False)
    assert roomy.free_memory()
    assert streamed(network) is not None
    assert roomy.use.held_bytes < held
    assert torch.equal(velocity(network), before)
    assert roomy.free_memory()
    assert streamed(texts.encoder) is not None  # type: ignore[attr-defined]  # of Z-Image
    assert not roomy.free_memory()


def test_nothing_is_streamed_that_the_machine_has_no_memory_for(root: Path) -> None:
    store = store_in(root, host=1000)
    network = network_of(store)
    assert not store.free_memory()
    assert streamed(network) is None


def test_nothing_is_streamed_where_the_body_of_a_node_runs_out(roomy: ModelStore) -> None:
    network = network_of(roomy)
    assert not context_of(roomy).free_memory()
    assert streamed(network) is None


def test_a_model_that_is_streamed_by_half_is_given_to_no_other_run(
    monkeypatch: pytest.MonkeyPatch, roomy: ModelStore
) -> None:
    network, left = network_of(roomy), iter(range(LAYERS // 2))
    before = velocity(network)

    def pinned(_group: ModuleGroup) -> dict[Tensor, Tensor]:
        if next(left, None) is None:
            raise RuntimeError("CUDA error: out of memory")
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(ModuleGroup, "_init_cpu_param_dict", pinned)
        assert not roomy.free_memory()
    assert roomy.size_bytes == 0
    again = network_of(roomy)
    assert again is not network
    assert torch.equal(velocity(again), before)


def test_a_broken_call_leaves_nothing_on_the_device(
    residents: Residents, tight: ModelStore
) -> None:
    network = network_of(tight)
    before = velocity(network)

    def fail(*_: Any) -> None:
        raise OutOfMemory

    handle = network.layers[1].attention.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory):
        velocity(network)
    handle.remove()
    assert residents.bytes > 0
    tight.free_memory()
    assert residents.bytes == 0
    assert torch.equal(velocity(network), before)


@pytest.mark.parametrize(
    ("device", "host", "text"),
    [(1000, PLENTY, "are needed at once"), (None, 1000, "of the machine's memory")],
)
def test_what_fits_neither_way_is_refused_with_the_numbers(
    root: Path, size: int, device: int | None, host: int, text: str
) -> None:
    with pytest.raises(OutOfMemory, match=rf"{NETWORK} has .* GB .*{text}"):
        network_of(store_in(root, size if device is None else device, host))


def test_a_copy_of_a_streamed_model_is_its_own(residents: Residents, tight: ModelStore) -> None:
    network = network_of(tight)
    before = velocity(network)
    copied = sharing_copy(network)
    copied.layers[0].feed_forward.w1.weight = nn.Parameter(
        torch.zeros_like(copied.layers[0].feed_forward.w1.weight), requires_grad=False
    )
    assert streamed(network) is not None
    assert streamed(copied) is None
    stream(copied, torch.device("cpu"))
    assert not torch.equal(velocity(copied), before)
    assert torch.equal(velocity(network), before)
    assert residents.bytes == 0


def test_a_copy_that_cannot_be_made_leaves_the_model_streamed(tight: ModelStore) -> None:
    network = network_of(tight)
    before, network.origin = velocity(network), (at for at in range(1))  # which none can copy
    with pytest.raises(TypeError):
        sharing_copy(network)
    assert streamed(network) is not None
    assert torch.equal(velocity(network), before)
