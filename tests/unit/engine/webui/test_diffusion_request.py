"""Styles, hashes and the defaults of families in diffusion requests."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engine.errors import ModelsUnavailable, ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.graph.safetensors_header import Header, read_header
from engine.webui.diffusion_request import expanded, with_family_defaults
from engine.webui.family_defaults import default_side
from engine.webui.parameters import DiffusionParameters, parse_parameters
from tests.support.engine.diffusion_requests import compiled, field_errors

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


def test_default_size_is_that_of_the_checkpoints_kind(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "xl"
    folder.mkdir(parents=True)
    for pipeline, side in (("StableDiffusionXLPipeline", 1024), ("StableDiffusionPipeline", 512)):
        (folder / "model_index.json").write_text(f'{{"_class_name": "{pipeline}"}}')
        sides = {"width": None, "height": 256}
        (made,) = compiled(Catalogue(ModelsFolder(tmp_path)), **sides, default="xl").passes
        assert (made.width, made.height) == (side, 256)


def test_a_checkpoint_is_looked_into_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: Path) -> Header:
        read.append(path.name)
        return read_header(path)

    monkeypatch.setattr("engine.families.recognition.read_header", counted)
    models, checkpoint = ModelsFolder(tmp_path, ttl_s=0), tmp_path / "x.safetensors"
    for length in (1, 2):
        save_file({"x": np.zeros(length, np.float32)}, checkpoint)
        for _ in range(3):
            assert default_side(models, checkpoint.name) == 512
    assert len(read) == 2


Z_IMAGE = ("model.diffusion_model.cap_pad_token", "text_encoders.x")
FLUX = ("model.diffusion_model.double_blocks.0.img_attn.qkv.weight", "text_encoders.x")


@pytest.fixture
def families(tmp_path: Path) -> ModelsFolder:
    for name, keys in (("z", Z_IMAGE), ("flux", FLUX), ("other", ("x",))):
        save_file({key: np.zeros(1, np.float32) for key in keys}, tmp_path / f"{name}.safetensors")
    return ModelsFolder(tmp_path)


def usual(families: ModelsFolder, checkpoint: str, **body: Any) -> dict[str, Any]:
    """Return the recorded members of a request for that checkpoint."""
    asked = {"prompt": "x", **body}
    found = with_family_defaults(parse_parameters(asked), asked, families, default=checkpoint)
    return found.recorded()


@pytest.mark.parametrize(
    ("checkpoint", "steps", "sampler"),
    [("z", 8, "RES Multistep"), ("flux.safetensors", 20, "Euler")],
)
def test_what_a_request_leaves_open_is_usual_for_its_family(
    checkpoint: str, steps: int, sampler: str, families: ModelsFolder
) -> None:
    defaults = {"steps": steps, "cfg_scale": 1.0, "sampler_name": sampler, "scheduler": "Simple"}
    assert usual(families, checkpoint) == {"prompt": "x", "compatibility": "comfyui", **defaults}


def test_what_a_request_says_is_kept(families: ModelsFolder) -> None:
    said = {"steps": 30, "cfg_scale": 4.0, "sampler_name": "DPM++ 2M Karras"}
    found = usual(families, "z", **said)
    assert found == {"prompt": "x", "compatibility": "comfyui", **said}
    assert usual(families, "other", sd_model_checkpoint="z")["steps"] == 8


@pytest.mark.parametrize("checkpoint", ["other", "missing", None])
def test_others_take_what_they_always_took(checkpoint: str | None, families: ModelsFolder) -> None:
    asked = {"prompt": "x"}
    given = parse_parameters(asked)
    assert with_family_defaults(given, asked, families, default=checkpoint) == given


def test_a_scale_of_guidance_is_told_to_flux_alone(families: ModelsFolder) -> None:
    asked, catalogue = {"distilled_cfg_scale": 2.5}, Catalogue(families)
    prompt = compiled(catalogue, **asked, default="flux.safetensors").prompt
    assert prompt["text"]["inputs"]["guidance"] == 2.5
    (told,) = field_errors(catalogue, **asked, default="z.safetensors").values()
    assert re.search(r"is for Flux\.1, but z\.safet.* is Z-Image", told)
