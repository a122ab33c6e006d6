from __future__ import annotations

import pickle

import pytest

from engine.errors import ParametersInvalid
from engine.webui.parameters import parse_parameters


def bad_fields(body: object) -> dict[str, str]:
    with pytest.raises(ParametersInvalid) as caught:
        parse_parameters(body)
    assert pickle.loads(pickle.dumps(caught.value)).fields == caught.value.fields
    for each in caught.value.fields:
        assert f"{each.field} {each.message}".encode()
    return {each.field: each.type for each in caught.value.fields}


def test_defaults_are_those_of_the_api() -> None:
    parameters = parse_parameters({"prompt": "x"})
    assert (parameters.width, parameters.height, parameters.steps) == (None, None, 20)
    assert (parameters.sampler_name, parameters.scheduler) == ("Euler", "Automatic")
    assert (parameters.cfg_scale, parameters.batch_size, parameters.clip_skip) == (7, 1, 1)
    assert (parameters.negative_prompt, parameters.seed) == ("", -1)


def test_every_bad_field_is_named() -> None:
    values = {
        "steps": 151,
        "cfg_scale": float("nan"),
        "batch_size": True,
        "sampler_name": "nope",
        "scheduler": "nope",
        "clip_skip": 0,
        "seed": 2**64,
        "negative_prompt": "\ud800",
    }
    others = {"unknown": 1, "override_settings": {"samples_format": "jpg"}}
    fields = bad_fields(values | others)
    assert fields["prompt"] == "missing"
    assert fields["unknown"] == "extra_forbidden"
    assert fields["override_settings.samples_format"] == "extra_forbidden"
    assert len(fields) == 11


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("init_images", ["x.png"] * 17),
        ("init_images", [""]),
        ("init_images", "cat.png"),
        ("resize_mode", 4),
        ("resize_mode", True),
        ("inpainting_fill", -1),
        ("mask_blur", 65),
        ("mask_blur_x", float("nan")),
        ("inpaint_full_res_padding", 2**70),
        ("inpainting_mask_invert", 2),
        ("initial_noise_multiplier", float("inf")),
        ("mask_round", False),
        ("denoising_strength", float("nan")),
        ("mask", "x" * 1025),
        ("subseed_strength", 1.1),
        ("subseed", 2**64),
        ("seed_resize_from_w", 5000),
        ("s_churn", -1),
        ("s_noise", "inf"),
        ("refiner_switch_at", 2),
        ("tiling", "perhaps"),
        ("styles", ["x"] * 17),
    ],
)
def test_a_value_beyond_its_range_is_named(name: str, value: object) -> None:
    body = {"init_images": ["cat.png"], "mask": "mask.png", "compatibility": "webui", "steps": 20}
    (field,) = bad_fields(body | {"refiner_checkpoint": "x", name: value})
    assert field.partition(".")[0] == name


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert set(bad_fields(body)) == {"body"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("stps", "; did you mean steps or styles?"),
        ("sampler", "; did you mean sampler_name or sampler_index or hr_sampler_name?"),
        (
            "checkpoint",
            "; did you mean refiner_checkpoint or hr_checkpoint_name or sd_model_checkpoint?",
        ),
        ("quux", ""),
        ("steps" * 100_000, ""),
    ],
)
def test_a_mistyped_member_is_told_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(ParametersInvalid) as caught:
        parse_parameters({"prompt": "a", name: 3})
    assert caught.value.fields[0].message == f"is not supported{near}"


def test_of_many_mistyped_members_a_few_are_told_the_nearest_one() -> None:
    """It takes longer than all else, and small bodies are checked on the event loop."""
    with pytest.raises(ParametersInvalid) as caught:
        parse_parameters({"prompt": "a"} | {f"seed_resize_from{n}": 3 for n in range(50)})
    hints = [each.message for each in caught.value.fields if "did you mean" in each.message]
    assert len(hints) == 5


def test_of_many_wrong_styles_the_first_is_told() -> None:
    """All of them would be told in one call that leaves no other thread a turn."""
    assert bad_fields({"prompt": "a", "styles": [0] * 100_000}) == {"styles.0": "string_type"}
