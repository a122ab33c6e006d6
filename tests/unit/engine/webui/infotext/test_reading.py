"""Generation texts, in the forms in which WebUIs of every age and the sites write them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.webui.compiler import compile_parameters
from engine.webui.infotext.reading import read_infotext
from engine.webui.infotext.writing import infotext
from engine.webui.parameters import parse_parameters
from serve_app.cli.main import app
from tests.support.engine.workflows import TINY
from tests.support.patience import least_cpu_s

GOLDEN = json.loads((Path(__file__).parents[4] / "golden" / "infotexts.json").read_text())
TEXTS = GOLDEN["found"] + GOLDEN["made"]
"""Texts as they are found in public, without what names anybody; and forms that they lack."""


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_from_a_webui_is_taken_whole(text: str) -> None:
    read = read_infotext(text)
    parameters = parse_parameters(read.request)
    settings = text[text.rindex("\nSteps: ") :]
    assert f"Steps: {parameters.steps}, Sampler: {parameters.sampler_name}" in settings
    assert re.search(rf"Seed: {parameters.seed}\b", settings)
    if parameters.varies:
        assert f"Variation seed: {parameters.subseed}" in settings
    assert f"Size: {parameters.width}x{parameters.height}" in settings
    assert text.startswith(parameters.prompt)
    assert parameters.enable_hr == ("Hires up" in settings)


WITHOUT_A_PART = re.compile(
    r"(ADetailer|Batch|Civitai|ControlNet|Dynamic thresholding|Face restoration|Hires (CFG|Module)"
    r"|Init image|Inpaint area|Mask|Mimic scale|Module|TIPO|Tiled Diffusion|Token merging|X ).*"
    r"|(Model|VAE) hash|(Lora|TI) hashes|Hashes|RNG|Version|Created Date|Conditional mask weight"
    r"|Distilled CFG Scale|Script|Shift|Style|Sugar-crush|(Negative )?Template|Used embeddings"
    r"|Pad conds"
)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_what_has_no_part_in_a_request_is_named(text: str) -> None:
    for name in read_infotext(text).left_out:
        assert WITHOUT_A_PART.fullmatch(name)


def test_settings_may_be_broken_into_lines_and_hold_json() -> None:
    settings = 'Steps: 2, Sampler: Euler, Extra: {"a": "b, Seed: 5"},\nSeed: 7\nTemplate: y'
    read = read_infotext(f"x\n{settings}")
    assert (read.request["prompt"], read.request["seed"]) == ("x", 7)
    assert read.left_out == {"Extra": '{"a": "b, Seed: 5"}', "Template": "y"}
    for broken in ('{"a": ', "[" * 100_000, '"\\m'):
        assert read_infotext(f"x\nSteps: 2, Sampler: Euler, Y: {broken}").request["steps"] == 2


def test_empty_lines_take_no_time() -> None:
    text = "x\nSteps: 2" + "\n" * 50_000 + "\n Seed: 7, Eta: 1"
    assert read_infotext(text).request["seed"] == 7
    assert least_cpu_s(lambda: read_infotext(text)) < 1.0


def test_texts_and_settings_are_told_apart() -> None:
    read = read_infotext("a dog\nNegative prompt: a cat,\nSteps: many")
    assert read.request["negative_prompt"] == "a cat,\nSteps: many"
    assert read_infotext("").request["prompt"] == ""
    with pytest.raises(ValueError, match="many"):
        read_infotext("x\nSteps: many, Sampler: Euler, Seed: 1")


@pytest.mark.parametrize(
    "body",
    [
        {"sampler_name": "DPM++ 2M", "clip_skip": 2, "eta": 0.5},
        {"enable_hr": True, "hr_prompt": 'a "red", circle', "hr_sampler_name": "DDIM"},
        {"enable_hr": True, "hr_sampler_name": "DPM++ 2M"},
        {"enable_hr": True, "hr_resize_x": 1024, "hr_resize_y": 768, "hr_upscaler": "Lanczos"},
        {
            "scheduler": "KL Optimal",
            "override_settings": {"sgm_noise_multiplier": True, "eta_noise_seed_delta": 5},
        },
    ],
    ids=str,
)
def test_our_own_text_describes_the_same_pictures(
    empty_catalogue: Catalogue, body: dict[str, Any]
) -> None:
    asked = {"prompt": "a dog", "negative_prompt": "b", "seed": 3, "width": 64, "height": 64}
    first = parse_parameters({**asked, "compatibility": "webui", **body})

    def compiled(parameters: Any) -> Any:
        return compile_parameters(parameters, empty_catalogue, Limits(), default_checkpoint=TINY)

    text = infotext(first, compiled(first), 0, "1")
    again = parse_parameters(read_infotext(text).request)
    assert compiled(again).prompt == compiled(first).prompt


def test_the_command_prints_the_request(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text(TEXTS[0])
    done = CliRunner().invoke(app, ["infotext", str(file)])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["seed"] == 749109862
    wrong = CliRunner().invoke(app, ["infotext"], input="x\nSteps: 1, Sampler: Nope, Seed: 1")
    assert wrong.exit_code == 2
    assert "unknown sampler" in wrong.stderr
