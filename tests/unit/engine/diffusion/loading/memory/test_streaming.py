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
from engine.diffusion.context import Context
from engine.diffusion.families.encoders import load_texts
from engine.diffusion.families.loading import load_diffusion_model
from engine.diffusion.families.lookup import transformer_family
from engine.diffusion.loading.memory.streaming import Room, stream, streamed
from engine.diffusion.loading.merging import sharing_copy
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text.family_texts import FamilyTexts
from engine.errors import OutOfMemory
from engine.families.family import Family
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
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


def store_in(root: Path, room: Room | None) -> ModelStore:
    return ModelStore(ModelsFolder(root), torch.device("cpu"), PLENTY, room=room)


def network_of(store: ModelStore) -> Any:
    return load_diffusion_model(store, NETWORK, "default").unet


def texts_of(store: ModelStore) -> FamilyTexts:
    return load_texts(store, Family.Z_IMAGE, [ENCODER])


def size_of(module: nn.Module) -> int:
    return sum(each.nbytes for each in module.parameters())


def velocity(network: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 16, 8, 8, generator=generator)
    texts = [torch.randn(1, 5 * at, Z_IMAGE["cap_feat_dim"], generator=generator) for at in (1, 2)]
    conditions = [Condition(each) for each in texts]
    return transformer_family(Family.Z_IMAGE).velocity(
        network, x, torch.tensor([0.9, 0.2]), conditions
    )


def states(texts: Any) -> Tensor:
    found: Tensor = texts.encoder.encoded([(1, 2, 3)])[0]
    return found


def test_what_fits_stays_on_the_device(root: Path) -> None:
    store = store_in(root, Room(lambda: PLENTY, lambda: PLENTY))
    network = network_of(store)
    assert streamed(network) is None
    assert store.size_bytes == size_of(network)


def test_what_does_not_fit_is_streamed_and_computes_the_same(root: Path) -> None:
    whole = store_in(root, None)
    size = size_of(network_of(whole))
    store = store_in(root, Room(lambda: size, lambda: PLENTY))
    network, texts = network_of(store), texts_of(store)
    assert streamed(network) is not None
    assert torch.equal(velocity(network), velocity(network_of(whole)))
    assert torch.equal(velocity(network), velocity(network_of(whole)))  # the order is known now
    assert torch.equal(states(texts), states(texts_of(whole)))


def test_a_layer_is_on_the_device_for_its_turn_alone(root: Path, residents: Residents) -> None:
    size = size_of(network_of(store_in(root, None)))
    network = network_of(store_in(root, Room(lambda: size, lambda: PLENTY)))
    velocity(network)
    blocks = [each for each in residents.layers if each == ["ZImageTransformerBlock"]]
    assert len(blocks) == LAYERS + 2 * Z_IMAGE["n_refiner_layers"]
    mark = streamed(network)
    assert mark is not None
    assert 0 < residents.most_bytes <= mark.resident_bytes < size
    assert residents.bytes == 0


def test_a_streamed_model_counts_with_what_is_on_the_device(root: Path) -> None:
    size = size_of(network_of(store_in(root, None)))
    store = store_in(root, Room(lambda: size, lambda: PLENTY))
    mark = streamed(network := network_of(store))
    assert mark is not None
    assert store.size_bytes == store.use.held_bytes == mark.resident_bytes
    assert mark.size_bytes == size_of(network) == size


def test_a_language_model_is_streamed_too(root: Path, residents: Residents) -> None:
    whole = texts_of(store_in(root, None))
    size = size_of(whole.encoder)  # type: ignore[attr-defined]  # of Z-Image
    texts: Any = texts_of(store_in(root, Room(lambda: size, lambda: PLENTY)))
    assert torch.equal(states(texts), states(whole))
    assert ["Qwen3DecoderLayer"] in residents.layers
    assert residents.bytes == 0


def test_models_that_no_run_uses_go_before_anything_is_streamed(root: Path) -> None:
    size = size_of(network_of(store_in(root, None)))
    store = store_in(root, None)
    store.room = Room(lambda: 2 * size - store.size_bytes, lambda: PLENTY)
    store.get_or_create("unused", lambda: nn.Linear(size // 4, 1, bias=False))
    assert streamed(network_of(store)) is None
    assert store.use.evicted == 1


def test_a_streamed_model_that_no_run_uses_is_dropped(root: Path) -> None:
    size = size_of(network_of(store_in(root, None)))
    store = store_in(root, Room(lambda: size, lambda: PLENTY))
    velocity(network_of(store))
    assert store.free_unused()
    assert (store.size_bytes, store.use.evicted) == (0, 1)


def test_when_memory_runs_out_the_largest_model_is_streamed_from_then_on(root: Path) -> None:
    store = store_in(root, Room(lambda: PLENTY, lambda: PLENTY))
    network, texts = network_of(store), texts_of(store)
    before, held = velocity(network), store.use.held_bytes
    assert not store.free_memory(may_stream=False)
    assert store.free_memory()
    assert streamed(network) is not None
    assert store.use.held_bytes < held
    assert torch.equal(velocity(network), before)
    assert store.free_memory()
    assert streamed(texts.encoder) is not None  # type: ignore[attr-defined]  # of Z-Image
    assert not store.free_memory()


def test_nothing_is_streamed_that_the_machine_has_no_memory_for(root: Path) -> None:
    store = store_in(root, Room(lambda: PLENTY, lambda: 1000))
    network = network_of(store)
    assert not store.free_memory()
    assert streamed(network) is None


def test_nothing_is_streamed_where_the_body_of_a_node_runs_out(root: Path) -> None:
    store = store_in(root, Room(lambda: PLENTY, lambda: PLENTY))
    network = network_of(store)
    context = Context(store, on_steps=lambda _: None, input_files={}, limits=Limits())
    assert not context.free_memory()
    assert streamed(network) is None


def test_a_model_that_is_streamed_by_half_is_given_to_no_other_run(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(root, Room(lambda: PLENTY, lambda: PLENTY))
    network, left = network_of(store), iter(range(LAYERS // 2))
    before = velocity(network)

    def pinned(_group: ModuleGroup) -> dict[Tensor, Tensor]:
        if next(left, None) is None:
            raise RuntimeError("CUDA error: out of memory")
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(ModuleGroup, "_init_cpu_param_dict", pinned)
        assert not store.free_memory()
    assert store.size_bytes == 0
    again = network_of(store)
    assert again is not network
    assert torch.equal(velocity(again), before)


def test_a_call_that_broke_off_leaves_nothing_on_the_device(
    root: Path, residents: Residents
) -> None:
    size = size_of(network_of(store_in(root, None)))
    store = store_in(root, Room(lambda: size, lambda: PLENTY))
    network = network_of(store)
    before = velocity(network)

    def fail(*_: Any) -> None:
        raise OutOfMemory

    handle = network.layers[1].attention.register_forward_pre_hook(fail)
    with pytest.raises(OutOfMemory):
        velocity(network)
    handle.remove()
    assert residents.bytes > 0
    store.free_memory()
    assert residents.bytes == 0
    assert torch.equal(velocity(network), before)


@pytest.mark.parametrize(
    ("device", "host", "text"),
    [(1000, PLENTY, "must be there at once"), (None, 1000, "of the machine's memory")],
)
def test_what_fits_neither_way_is_refused_with_the_numbers(
    root: Path, device: int | None, host: int, text: str
) -> None:
    size = size_of(network_of(store_in(root, None)))
    free = size if device is None else device
    store = store_in(root, Room(lambda: free, lambda: host))
    with pytest.raises(OutOfMemory, match=rf"{NETWORK} has .* GB .*{text}"):
        network_of(store)


def test_a_copy_of_a_streamed_model_is_streamed_by_itself(root: Path, residents: Residents) -> None:
    size = size_of(network_of(store_in(root, None)))
    network = network_of(store_in(root, Room(lambda: size, lambda: PLENTY)))
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


def test_a_copy_that_cannot_be_made_leaves_the_model_streamed(root: Path) -> None:
    size = size_of(network_of(store_in(root, None)))
    network = network_of(store_in(root, Room(lambda: size, lambda: PLENTY)))
    before, network.origin = velocity(network), (at for at in range(1))  # which none can copy
    with pytest.raises(TypeError):
        sharing_copy(network)
    assert streamed(network) is not None
    assert torch.equal(velocity(network), before)
