from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import CheckpointUnavailable, ModelsUnavailable
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import read_header
from tests.support.engine.hung_mount import HungMount, hung_mount
from tests.support.engine.special_files import make_special_files


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def test_lists_files_folders_and_what_lies_at_the_top(tmp_path: Path) -> None:
    for name in (
        "top.safetensors",
        "checkpoints/b.safetensors",
        "checkpoints/sub/a.safetensors",
        "checkpoints/folder/model_index.json",
        "checkpoints/folder/unet/inside.safetensors",
        "checkpoints/b.config/model_index.json",
        "checkpoints/pickled.ckpt",
        "checkpoints/.hidden.safetensors",
        "loras/l.safetensors",
        "unet/old.safetensors",
        "diffusion_models/new.safetensors",
        "clip/text.safetensors",
    ):
        touch(tmp_path / name)
    models = ModelsFolder(tmp_path)
    names = models.names("checkpoints")
    assert names == ("b.safetensors", "folder", "sub/a.safetensors", "top.safetensors")
    assert models.names("loras") == ("l.safetensors",)
    assert models.names("vae") == ()
    assert models.names("diffusion_models") == ("new.safetensors", "old.safetensors")
    assert models.names("text_encoders") == ("text.safetensors",)
    assert models.path("checkpoints", "sub/a.safetensors").is_file()
    assert models.path("checkpoints", "folder").is_dir()


def test_listing_is_read_anew_after_its_time(tmp_path: Path) -> None:
    now_s = 0.0
    models = ModelsFolder(tmp_path, ttl_s=2, clock=lambda: now_s)
    assert models.names("checkpoints") == ()
    touch(tmp_path / "checkpoints" / "new.safetensors")
    assert models.names("checkpoints") == ()
    now_s = 2.0
    assert models.names("checkpoints") == ("new.safetensors",)


@pytest.mark.parametrize(
    "name",
    [
        "../secret.safetensors",
        "/etc/passwd",
        "",
        ".",
        "checkpoints/../../secret.safetensors",
        "..\\secret.safetensors",
        "C:a.safetensors",
        "a\0b",
        "a" * 10**6,
    ],
)
def test_no_name_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    touch(tmp_path / "secret.safetensors")
    root = tmp_path / "models"
    touch(root / "checkpoints" / "a.safetensors")
    with pytest.raises(CheckpointUnavailable):
        ModelsFolder(root).path("checkpoints", name)
    with pytest.raises(CheckpointUnavailable):
        ModelsFolder(root).path("..", "secret.safetensors")


def test_links_and_deep_folders_end_no_listing(tmp_path: Path) -> None:
    root, loras = tmp_path / "models", tmp_path / "models" / "loras"
    for name in ("good.safetensors", "pickled.pt", f"{'a/' * 60}deep.safetensors"):
        touch(loras / name)
    touch(loras / f"{'a/' * 70}deepest.safetensors")
    special = make_special_files(loras)
    models = ModelsFolder(root)
    assert set(models.names("loras")) == {
        "good.safetensors",
        f"{'a/' * 60}deep.safetensors",
        *special,
    }
    assert models.pickled("loras").keys() == {"pickled", "pickled.pt"}
    for name in special:
        with pytest.raises(CheckpointUnavailable, match=name):
            read_header(models.path("loras", name))


def test_a_known_name_is_found_without_reading_the_folder_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "checkpoints" / "a.safetensors")
    models = ModelsFolder(tmp_path, ttl_s=0)
    path = models.path("checkpoints", "a.safetensors")
    touch(tmp_path / "checkpoints" / "new.safetensors")
    assert models.path("checkpoints", "new.safetensors").name == "new.safetensors"
    reads = []
    monkeypatch.setattr("os.walk", lambda folder: reads.append(folder) or ())
    assert models.path("checkpoints", "a.safetensors") == path
    assert reads == []


def test_a_file_that_went_away_is_unavailable(tmp_path: Path) -> None:
    touch(tmp_path / "a.safetensors")
    models = ModelsFolder(tmp_path)
    assert models.names("checkpoints") == ("a.safetensors",)
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(CheckpointUnavailable, match=r"a\.safetensors"):
        models.path("checkpoints", "a.safetensors")


@pytest.fixture
def mount() -> Iterator[HungMount]:
    with hung_mount() as mount:
        yield mount


def test_a_folder_that_hangs_has_the_models_that_it_had(tmp_path: Path, mount: HungMount) -> None:
    touch(tmp_path / "checkpoints" / "a.safetensors")
    models = ModelsFolder(tmp_path, ttl_s=0, timeout_s=0.05)
    assert models.names("checkpoints") == ("a.safetensors",)
    mount.hang()
    touch(tmp_path / "checkpoints" / "b.safetensors")
    assert models.names("checkpoints") == ("a.safetensors",)
    assert models.path("checkpoints", "a.safetensors").name == "a.safetensors"
    for _ in range(2):
        with pytest.raises(ModelsUnavailable, match="models folder"):
            models.path("loras", "never listed")
    with pytest.raises(ModelsUnavailable):
        models.require_answer()
    mount.answer()
    while models.names("checkpoints") != ("a.safetensors", "b.safetensors"):
        time.sleep(0.001)


def test_a_view_lists_the_checkpoints_that_it_is_for_alone(tmp_path: Path) -> None:
    for name in ("checkpoints/a.safetensors", "checkpoints/b.safetensors", "loras/l.safetensors"):
        touch(tmp_path / name)
    models = ModelsFolder(tmp_path)
    view = models.only(["b.safetensors", "c.safetensors"])
    assert view.names("checkpoints") == ("b.safetensors",)
    assert view.names("loras") == ("l.safetensors",)
    assert view.path("checkpoints", "b.safetensors").is_file()
    with pytest.raises(CheckpointUnavailable):
        view.path("checkpoints", "a.safetensors")
    assert models.names("checkpoints") == ("a.safetensors", "b.safetensors")


def test_a_folder_that_is_missing_is_no_empty_one(tmp_path: Path) -> None:
    """Its disk may not be mounted yet: jobs wait for it, and do not fail for their models."""
    root = tmp_path / "models"
    models = ModelsFolder(root, ttl_s=0)
    with pytest.raises(ModelsUnavailable, match="missing"):
        models.names("checkpoints")
    root.mkdir()
    assert models.names("checkpoints") == ()
    (root / "a.safetensors").touch()
    assert models.names("checkpoints") == ("a.safetensors",)
    (root / "a.safetensors").unlink()
    root.rmdir()
    assert models.names("checkpoints") == ("a.safetensors",)
