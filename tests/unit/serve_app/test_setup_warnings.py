"""What is told of a service that is probably set up otherwise than it was meant."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from engine.graph.models_folder import ModelsFolder
from serve_app.setup_warnings import SetupWarnings, models_warnings, variable_warnings
from tests.support.edge import Client, Edge

NO_CHECKPOINT = "The models folder (DARKROOM_MODELS_DIR) has no checkpoint. Add one."


def test_a_variable_is_told_with_the_nearest_setting() -> None:
    assert variable_warnings({"DARKROOM_PROT": "DARKROOM_PORT", "DARKROOM_A": None}) == (
        "DARKROOM_A is not a setting.",
        "DARKROOM_PROT is not a setting; did you mean DARKROOM_PORT?",
    )


def test_a_models_folder_is_told_that_is_missing_or_has_no_checkpoint(tmp_path: Path) -> None:
    def warnings() -> str:
        return " ".join(models_warnings(ModelsFolder(tmp_path / "models")))

    assert "is missing" in warnings()
    (tmp_path / "models" / "loras").mkdir(parents=True)
    (tmp_path / "models" / "loras" / "a.safetensors").touch()
    assert warnings() == NO_CHECKPOINT
    folder = ModelsFolder(tmp_path / "models")
    assert models_warnings(folder, needs_checkpoint=False) == ()
    (tmp_path / "models" / "a.safetensors").touch()
    assert warnings() == ""


@pytest.mark.parametrize("has_checkpoint", [True, False])
async def test_readiness_tells_administrators(
    admin: Client, tmp_path: Path, has_checkpoint: bool
) -> None:
    if not has_checkpoint:
        shutil.rmtree(tmp_path / "models" / "checkpoints")
    answer = await admin.get("/health/ready")
    warnings = {} if has_checkpoint else {"warnings": [NO_CHECKPOINT]}
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"} | warnings)


async def test_readiness_tells_nobody_else(edge: Edge, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "models" / "checkpoints")
    for key in (None, "dk_no_key", await edge.key()):
        async with edge.client_with(key) as other:
            answer = await other.get("/health/ready")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_a_folder_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    class Hung(ModelsFolder):
        def exists(self) -> bool:
            released.wait(30)
            return False

    warnings = SetupWarnings(Hung(tmp_path), ["a"])
    monkeypatch.setattr("serve_app.setup_warnings._PATIENCE_S", 0.01)
    assert await warnings.now() == ["a"]
    assert await warnings.now() == ["a"]
    released.set()
    monkeypatch.setattr("serve_app.setup_warnings._PATIENCE_S", 30)
    assert len(await warnings.now()) == 2
