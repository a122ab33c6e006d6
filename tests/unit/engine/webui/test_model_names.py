"""Models are found by names and by hashes."""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import ModelsUnavailable
from engine.graph.models_folder import ModelsFolder
from engine.timed_reads import TimedReads
from engine.webui.model_names import (
    Models,
    ServerModels,
    listed_name,
    lora_of_file,
    named_by_hash,
    network_hashes,
)
from engine.webui.prompt import Lora, split_networks


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ([], "is not known; there are none"),
        (["a.safetensors", "b"], "is not known; there are: a.safetensors, b"),
    ],
)
def test_a_name_that_is_not_known_is_told_those_that_are(known: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}$"):
        listed_name("c", known)


def test_an_exact_name_precedes_a_name_without_its_hash() -> None:
    known = ["a.safetensors", "a [0123abcd].safetensors"]
    assert listed_name("a [0123abcd]", known) == "a [0123abcd].safetensors"
    assert listed_name("a [89ef4567]", known) == "a.safetensors"


LORAS = (
    "plain.safetensors",
    "plain .safetensors",
    "plain [v2].safetensors",
    "styles/ink [v2](soft), final.safetensors",
    "styles/v1.5.2.safetensors",
    "v1.pt.safetensors",
    " led.safetensors",
)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("plain", "plain.safetensors"),
        ("plain ", "plain .safetensors"),
        ("plain [v2]", "plain [v2].safetensors"),
        ("ink [v2](soft), final", "styles/ink [v2](soft), final.safetensors"),
        ("v1.5.2", "styles/v1.5.2.safetensors"),
        ("v1.pt", "v1.pt.safetensors"),
        (" led", " led.safetensors"),
        ("  v1.5.2 ", "styles/v1.5.2.safetensors"),
    ],
)
@pytest.mark.parametrize("is_server", [False, True])
def test_a_lora_is_found_by_the_whole_name_of_its_file(
    tmp_path: Path, asked: str, name: str, *, is_server: bool
) -> None:
    for each in LORAS:
        path = tmp_path / "loras" / each
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    models: Models = ServerModels({"loras": LORAS}) if is_server else ModelsFolder(tmp_path)
    found = split_networks(f"a <lora:{asked}:0.5> b", partial(lora_of_file, models))
    assert (found.text, found.loras) == ("a  b", (Lora(name, 0.5, 0.5),))


@pytest.mark.parametrize("asked", ["plain [v3]", "plain.", "lain", "v1.5", "PLAIN"])
def test_a_lora_is_not_found_by_a_part_of_its_name(asked: str) -> None:
    models = ServerModels({"loras": LORAS})
    left_out = split_networks(
        f"<lora:{asked}:1>", partial(lora_of_file, models), skips_unknown=True
    )
    assert (left_out.loras, left_out.notes) == ((), (f"lora_left_out: {asked}",))


WRITTEN = "DA259DF60E3612CDA6E7736D9E733018D585DF5C6F8821273AAB137160A5510E"


@pytest.fixture
def models(tmp_path: Path) -> ModelsFolder:
    tensors = {"lora_x.lora_down.weight": np.arange(4, dtype=np.float32).reshape(2, 2)}
    files: dict[str, dict[str, str]] = {
        "loras/plain": {},
        "loras/styles/titled": {"title": "x"},
        "loras/written": {"sshs_model_hash": WRITTEN},
        "loras/wrong": {"sshs_model_hash": "not a hash"},
        "embeddings/easynegative": {},
        "embeddings/bad-hands 5": {},
    }
    for name, metadata in files.items():
        path = tmp_path / f"{name}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, metadata)
    (tmp_path / "loras" / "broken.safetensors").write_bytes(b"\xff" * 20)
    return ModelsFolder(tmp_path)


def test_a_lora_is_known_by_its_tensors(models: ModelsFolder) -> None:
    tensors_alone = hashlib.sha256(np.arange(4, dtype=np.float32).tobytes()).hexdigest()[:12]
    listed = models.names("loras")
    assert network_hashes(models, listed, ()).loras == {
        "plain": tensors_alone,
        "titled": tensors_alone,
        "written": "da259df60e36",
        "wrong": tensors_alone,
    }
    assert network_hashes(models, ["plain.safetensors", "gone"], ()).loras.keys() == {"plain"}


def test_an_embedding_in_a_text_is_known_by_its_file(models: ModelsFolder, tmp_path: Path) -> None:
    found = network_hashes(models, (), ["(EasyNegative:1.2), ugly", "x"]).embeddings
    file = tmp_path / "embeddings" / "easynegative.safetensors"
    assert found == {"easynegative": hashlib.sha256(file.read_bytes()).hexdigest()[:12]}
    assert not network_hashes(models, (), ["easynegatively"]).embeddings
    assert network_hashes(models, (), ["a, bad-hands 5."]).embeddings.keys() == {"bad-hands 5"}


def test_a_text_waits_for_no_hash_and_a_name_does(tmp_path: Path, models: ModelsFolder) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "a.safetensors").touch()
    models.hashes = TimedReads(ttl_s=1.0, timeout_s=0.0, subject="A hash")
    blocked = threading.Event()
    with suppress(ModelsUnavailable):
        models.hashes.read("first", blocked.wait)
    try:
        assert not network_hashes(models, models.names("loras"), ["easynegative"]).loras
        with pytest.raises(ModelsUnavailable, match="A hash cannot be read"):
            named_by_hash(models, "0123456789")
    finally:
        blocked.set()
