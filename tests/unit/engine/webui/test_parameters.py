from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ParametersInvalid
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.validation import validate
from engine.webui.compiler import Compiled, compile_parameters
from engine.webui.parameters import (
    DiffusionParameters,
    parse_parameters,
    with_seed,
)
from tests.support.engine.workflows import TINY


def bad_fields(body: object) -> dict[str, str]:
    with pytest.raises(ParametersInvalid) as caught:
        parse_parameters(body)
    return {each.field: each.type for each in caught.value.fields}


def compiled(catalogue: Catalogue, limits: Limits | None = None, **body: Any) -> Compiled:
    skip = body.pop("skip", frozenset())
    default = body.pop("default", TINY)
    parameters = with_seed(parse_parameters({"prompt": "x", **body}), lambda: 5)
    return compile_parameters(
        parameters, catalogue, limits or Limits(), default_checkpoint=default, skip=skip
    )


def test_defaults_are_those_of_the_api() -> None:
    parameters = parse_parameters({"prompt": "x"})
    assert (parameters.width, parameters.height, parameters.steps) == (None, None, 20)
    assert (parameters.sampler_name, parameters.scheduler) == ("Euler", "Automatic")
    assert (parameters.cfg_scale, parameters.batch_size, parameters.clip_skip) == (7, 1, 1)
    assert (parameters.negative_prompt, parameters.seed) == ("", -1)


def test_every_bad_field_is_named() -> None:
    fields = bad_fields(
        {
            "steps": 151,
            "cfg_scale": float("nan"),
            "batch_size": True,
            "sampler_name": "nope",
            "scheduler": "nope",
            "clip_skip": 0,
            "unknown": 1,
            "override_settings": {"samples_format": "jpg"},
            "seed": 2**64,
            "negative_prompt": "\ud800",
        }
    )
    assert fields["prompt"] == "missing"
    assert fields["unknown"] == "extra_forbidden"
    assert fields["override_settings.samples_format"] == "extra_forbidden"
    assert len(fields) == 11


@pytest.mark.parametrize("body", [None, [], "x", 3])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert set(bad_fields(body)) == {"body"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_fields = st.sampled_from(sorted(DiffusionParameters.model_fields))
_any_text = st.text(st.characters(exclude_categories=[]), max_size=5)


@given(st.dictionaries(_fields | _any_text, _json | _any_text, max_size=5) | _json)
def test_any_body_is_taken_or_refused_cleanly(body: Any) -> None:
    try:
        parse_parameters(body)
    except ParametersInvalid as refusal:
        fields, again = refusal.fields, pickle.loads(pickle.dumps(refusal)).fields
    else:
        return
    assert fields
    assert again == fields
    for each in fields:
        f"{each.field} {each.message}".encode()


def test_override_settings_win(empty_catalogue: Catalogue) -> None:
    prompt = compiled(
        empty_catalogue,
        sd_model_checkpoint="other",
        override_settings={"sd_model_checkpoint": TINY},
    ).prompt
    assert prompt["checkpoint"]["inputs"]["ckpt_name"] == TINY


@pytest.mark.parametrize(
    "name", [TINY, TINY.removesuffix(".safetensors"), f"{TINY} [6ce0161689]", "darkroom-tiny [6ce]"]
)
def test_checkpoint_is_known_by_each_of_its_spellings(
    name: str, empty_catalogue: Catalogue
) -> None:
    prompt = compiled(empty_catalogue, sd_model_checkpoint=name, default=None).prompt
    assert prompt["checkpoint"]["inputs"]["ckpt_name"] == TINY


@pytest.mark.parametrize("name", ["nope", "../x", None])
def test_unknown_checkpoint_is_a_bad_field(name: str | None, empty_catalogue: Catalogue) -> None:
    with pytest.raises(ParametersInvalid) as caught:
        compiled(empty_catalogue, sd_model_checkpoint=name, default=None)
    assert caught.value.fields[0].field == "sd_model_checkpoint"


def test_a_batch_is_one_sampler_per_image_with_following_seeds(empty_catalogue: Catalogue) -> None:
    found = compiled(empty_catalogue, batch_size=3, seed=10)
    graph = validate(found.prompt, empty_catalogue, Limits())
    assert found.seeds == (10, 11, 12)
    assert found.first_index == {"save-0": 0, "save-1": 1, "save-2": 2}
    assert [graph.seed_of(f"save-{i}") for i in range(3)] == [10, 11, 12]
    assert [node.id for node in graph.outputs] == list(found.first_index)


def test_images_that_are_there_already_are_left_out(empty_catalogue: Catalogue) -> None:
    found = compiled(empty_catalogue, batch_size=3, skip=frozenset({0, 2}))
    assert found.first_index == {"save-1": 1}
    assert found.seeds == (5, 6, 7)
    assert "sample-0" not in found.prompt


def test_clip_skip_takes_an_earlier_layer(empty_catalogue: Catalogue) -> None:
    prompt = compiled(empty_catalogue, clip_skip=2).prompt
    assert prompt["clip"]["inputs"]["stop_at_clip_layer"] == -2
    assert prompt["text"]["inputs"]["clip"] == ["clip", 0]
    assert "clip" not in compiled(empty_catalogue).prompt


def test_limits_of_the_endpoint_name_their_field(empty_catalogue: Catalogue) -> None:
    limits = Limits(max_side=256, max_steps=10, max_batch=2, max_pixels=1)
    with pytest.raises(ParametersInvalid) as caught:
        compiled(empty_catalogue, limits, batch_size=3)
    fields = [each.field for each in caught.value.fields]
    assert fields == ["width", "height", "steps", "batch_size", "width"]


def test_the_last_seed_is_followed_by_the_first(empty_catalogue: Catalogue) -> None:
    found = compiled(empty_catalogue, batch_size=2, seed=2**64 - 1)
    assert found.seeds == (2**64 - 1, 0)
    validate(found.prompt, empty_catalogue, Limits())


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
