"""The store of loaded models."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.activity import ModelUse
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.text.text_encoders import Encoded, EncodingCache
from tests.support.engine.stores import store_of

WEIGHTS = 100
SIZE_BYTES = 4 * WEIGHTS


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return store_of(tmp_path, 2 * SIZE_BYTES)


def layer() -> nn.Linear:
    return nn.Linear(WEIGHTS, 1, bias=False)


def test_least_recently_used_goes_first_and_is_counted(store: ModelStore) -> None:
    for key in ("a", "b", "a", "c"):
        store.get_or_create(key, layer, label=key)
    assert store.labels == ("a", "c")
    assert store.use == ModelUse(
        loaded=3,
        loaded_bytes=3 * SIZE_BYTES,
        evicted=1,
        evicted_bytes=SIZE_BYTES,
        hits=1,
        held_bytes=2 * SIZE_BYTES,
    )
    store.free_unused()
    assert (store.use.evicted, store.use.held_bytes) == (3, 0)


def test_what_is_in_use_stays_and_it_is_said_where_that_is_too_much(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    held = [store.get_or_create(key, layer) for key in ("a", "b")]
    with caplog.at_level(logging.WARNING):
        store.get_or_create("c", layer)
    assert [record.__dict__["size_bytes"] for record in caplog.records] == [3 * SIZE_BYTES]
    assert store.get_or_create("a", layer) is held[0]
    del held[:]
    store.get_or_create("d", layer)
    assert store.size_bytes == 2 * SIZE_BYTES


def test_all_that_nobody_uses_is_dropped_when_memory_runs_out(store: ModelStore) -> None:
    held = store.get_or_create("a", layer)
    store.get_or_create("b", layer)
    store.encoding_cache.put(1, Encoded(torch.zeros(WEIGHTS), None))
    assert store.free_unused()
    assert store.size_bytes == SIZE_BYTES
    assert store.encoding_cache.get(1) is None
    assert not store.free_unused()
    assert store.get_or_create("a", layer) is held


def test_room_is_made_before_anything_is_read(store: ModelStore) -> None:
    store.get_or_create("a", layer)
    store.get_or_create("b", layer)
    sizes: list[int] = []

    def create() -> nn.Module:
        store.free_for(SIZE_BYTES)
        sizes.append(store.size_bytes)
        return layer()

    store.get_or_create("c", create)
    assert sizes == [SIZE_BYTES]


def test_a_tensor_of_two_counts_once(store: ModelStore) -> None:
    base = store.get_or_create("a", layer)
    variant = layer()
    variant.weight = base.weight
    store.get_or_create("b", lambda: variant)
    assert store.size_bytes == SIZE_BYTES


def test_the_newest_stays_however_large(tmp_path: Path) -> None:
    store = store_of(tmp_path, 1)
    store.get_or_create("a", layer, label="a")
    store.get_or_create("b", layer, label="b")
    assert store.labels == ("b",)


def test_a_file_is_read_once_and_anew_when_it_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "upscale_models" / "x.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"1")
    store = store_of(tmp_path)
    reads: list[Path] = []

    def read(path: Path, _device: torch.device) -> nn.Module:
        reads.append(path)
        return layer()

    first = store.get("upscale_models", "x.safetensors", read)
    assert store.get("upscale_models", "x.safetensors", read) is first
    path.write_bytes(b"22")
    assert store.get("upscale_models", "x.safetensors", read) is not first
    assert reads == [path, path]


def test_encodings_are_kept_within_their_bytes() -> None:
    cache = EncodingCache(limit_bytes=3 * SIZE_BYTES)
    for key in (1, 2, 3):
        cache.put(key, Encoded(torch.zeros(WEIGHTS), None))
    assert cache.get(1) is not None
    cache.put(4, Encoded(torch.zeros(WEIGHTS // 2), torch.zeros(WEIGHTS // 2)))
    assert [key for key in (1, 2, 3, 4) if cache.get(key) is not None] == [1, 3, 4]


class Reader:
    """Reads a text, and counts how often it was asked."""

    def __init__(self) -> None:
        self.reads = 0
        self.fails = False

    def __call__(self, path: Path) -> str | None:
        self.reads += 1
        if self.fails:
            raise OSError("the server is away")
        return path.read_text() or None


def test_a_file_is_inspected_again_once_it_has_changed(store: ModelStore, tmp_path: Path) -> None:
    path, read = tmp_path / "model.safetensors", Reader()
    for count, text in enumerate(("first", "the second", ""), 1):
        path.write_text(text)
        for _ in range(3):
            assert store.inspect_once(read, path, store.identity(path)) == (text or None)
        assert read.reads == count


def test_a_change_that_was_not_read_is_read_the_next_time(
    store: ModelStore, tmp_path: Path
) -> None:
    path, read = tmp_path / "model.safetensors", Reader()
    path.write_text("first")
    store.inspect_once(read, path, store.identity(path))
    path.write_text("the second")
    read.fails = True
    assert store.inspect_once(read, path, store.identity(path)) == "first"
    read.fails = False
    assert store.inspect_once(read, path, store.identity(path)) == "the second"


def test_a_model_of_another_configuration_is_another(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("weights")
    configuration = tmp_path / "model.config" / "unet" / "config.json"
    identities = {store.identity(path)}
    configuration.parent.mkdir(parents=True)
    for text in ("{}", '{"in_channels": 9}'):
        configuration.write_text(text)
        identities.add(store.identity(path))
    assert len(identities) == 3


def test_what_was_found_of_files_is_not_kept_for_ever(store: ModelStore, tmp_path: Path) -> None:
    read: list[Path] = []
    paths = [tmp_path / f"{at}.safetensors" for at in range(200)]

    def found(path: Path) -> Path:
        read.append(path)
        return path

    for path in paths * 2:
        assert store.inspect_once(found, path, ("x", 1, 1)) == path
    assert len(read) == 400
    kept = paths[-100:]
    del read[:]
    for path in kept * 2:
        assert store.inspect_once(found, path, ("x", 1, 1)) == path
    assert read == []
    assert sum(store.models.reads.last((found, path)) is not None for path in paths) == 128
