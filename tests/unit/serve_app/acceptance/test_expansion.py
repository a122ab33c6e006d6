"""Styles and hashes in diffusion requests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelsUnavailable, ParametersInvalid
from engine.graph.models_folder import ModelsFolder
from engine.webui.parameters import DiffusionParameters, parse_parameters
from serve_app.acceptance.expansion import expanded

CONTENT = b"a checkpoint"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
STYLES = """\ufeffname,prompt,negative_prompt
ink,"ink drawing, monochrome",colour
framed,"a poster of {prompt}, framed",
empty,,
"""


@pytest.fixture
def models(tmp_path: Path) -> ModelsFolder:
    folder = tmp_path / "checkpoints"
    (folder / "folder").mkdir(parents=True)
    (folder / "folder" / "model_index.json").write_text("{}")
    (folder / "deadbeef00.safetensors").write_bytes(b"named like a hash")
    (folder / "sub").mkdir()
    (folder / "sub" / "x.safetensors").write_bytes(CONTENT)
    (tmp_path / "styles.csv").write_text(STYLES)
    return ModelsFolder(tmp_path)


def request(models: ModelsFolder, **body: Any) -> DiffusionParameters:
    return expanded(parse_parameters({"prompt": "a dog", **body}, "webui"), models)


@pytest.mark.parametrize(
    ("styles", "prompt", "negative"),
    [
        (["ink"], "a dog, ink drawing, monochrome", "blurry, colour"),
        (["framed"], "a poster of a dog, framed", "blurry"),
        (["ink", "framed"], "a poster of a dog, ink drawing, monochrome, framed", "blurry, colour"),
        (["empty"], "a dog", "blurry"),
        ([], "a dog", "blurry"),
    ],
)
def test_styles_are_added_to_the_texts(
    models: ModelsFolder, styles: list[str], prompt: str, negative: str
) -> None:
    found = request(models, styles=styles, negative_prompt="blurry")
    assert (found.prompt, found.negative_prompt) == (prompt, negative)
    assert (found.hr_prompt, found.hr_negative_prompt) == ("", "")
    assert found.styles == ()
    assert "styles" not in found.recorded()
    assert found.recorded()["prompt"] == prompt


def test_a_style_without_a_prompt_is_the_prompt(models: ModelsFolder) -> None:
    assert request(models, prompt="", styles=["ink"]).prompt == "ink drawing, monochrome"
    second = request(models, enable_hr=True, hr_prompt="a cat", styles=["framed"])
    assert second.hr_prompt == "a poster of a cat, framed"


def test_an_unknown_style_is_named(models: ModelsFolder, tmp_path: Path) -> None:
    for folder, known in ((models, "ink"), (ModelsFolder(tmp_path / "none"), "none")):
        with pytest.raises(ParametersInvalid) as caught:
            request(folder, styles=["Ink"])
        (error,) = caught.value.fields
        assert error.field == "styles"
        assert known in error.message


def test_texts_do_not_grow_without_end(models: ModelsFolder, tmp_path: Path) -> None:
    (tmp_path / "styles.csv").write_text('name,prompt,negative_prompt\nx,"{prompt} {prompt}",\n')
    with pytest.raises(ParametersInvalid) as caught:
        request(models, prompt="long" * 1000, styles=["x"] * 16)
    assert "with its styles" in caught.value.fields[0].message


def test_a_file_that_is_no_table_is_told(models: ModelsFolder, tmp_path: Path) -> None:
    (tmp_path / "styles.csv").write_bytes(b"name,prompt\n\xff,x\n")
    with pytest.raises(ModelsUnavailable, match=r"styles\.csv"):
        request(models, styles=["x"])
    assert request(models).prompt == "a dog"


@pytest.mark.parametrize(
    "asked", [DIGEST[:10], DIGEST, DIGEST[:10].upper(), f"[{DIGEST[:10]}]", f"old [{DIGEST[:10]}]"]
)
def test_a_hash_names_a_checkpoint(models: ModelsFolder, asked: str) -> None:
    name = "sub/x.safetensors"
    assert request(models, sd_model_checkpoint=asked).checkpoint == name
    settings = {"sd_model_checkpoint": asked}
    assert request(models, override_settings=settings).recorded()["override_settings"] == {
        "sd_model_checkpoint": name
    }
    assert request(models, refiner_checkpoint=asked).refiner_checkpoint == name
    second = request(models, enable_hr=True, hr_checkpoint_name=asked)
    assert second.hr_checkpoint_name == name


def test_a_name_wins_and_nobodys_hash_stays(models: ModelsFolder) -> None:
    for asked in ("deadbeef00", "0123456789", "dead", "x", DIGEST[:9]):
        assert request(models, sd_model_checkpoint=asked).checkpoint == asked


def test_a_checkpoint_that_an_endpoint_does_not_allow_has_no_hash(models: ModelsFolder) -> None:
    view = models.only(["deadbeef00.safetensors"])
    assert request(view, sd_model_checkpoint=DIGEST[:10]).checkpoint == DIGEST[:10]
