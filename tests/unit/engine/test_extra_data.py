from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from actors.worker.result_file import encode_png
from engine.errors import ParametersInvalid
from engine.extra_data import pnginfo_of
from serve_app.acceptance.compilation import require_small_pnginfo


@pytest.mark.parametrize("extra_data", [None, {}, {"extra_pnginfo": None}, {"client_id": "a"}])
def test_without_texts_there_is_nothing_to_add(extra_data: Any) -> None:
    assert pnginfo_of(extra_data) == {}


@pytest.mark.parametrize(
    ("extra_data", "field"),
    [
        ([1], "extra_data"),
        ("abc", "extra_data"),
        ({"extra_pnginfo": "abc"}, "extra_data.extra_pnginfo"),
        ({"extra_pnginfo": [1]}, "extra_data.extra_pnginfo"),
        ({"extra_pnginfo": {"日本": 1}}, "extra_data.extra_pnginfo.日本"),
        ({"extra_pnginfo": {"": 1}}, "extra_data.extra_pnginfo."),
        ({"extra_pnginfo": {"a" * 80: 1}}, f"extra_data.extra_pnginfo.{'a' * 80}"),
        ({"extra_pnginfo": {"a\x00": 1}}, "extra_data.extra_pnginfo.a\x00"),
        ({"extra_pnginfo": {" a": 1}}, "extra_data.extra_pnginfo. a"),
        ({"extra_pnginfo": {"a  b": 1}}, "extra_data.extra_pnginfo.a  b"),
    ],
)
def test_what_no_png_can_hold_is_named(extra_data: Any, field: str) -> None:
    with pytest.raises(ParametersInvalid) as refusal:
        pnginfo_of(extra_data)
    assert [each.field for each in refusal.value.fields] == [field]


def test_of_many_wrong_names_some_are_named() -> None:
    with pytest.raises(ParametersInvalid) as refusal:
        pnginfo_of({"extra_pnginfo": {f"{n}\n": 1 for n in range(1000)}})
    assert len(refusal.value.fields) == 50


def test_its_size_is_bounded_in_bytes() -> None:
    pnginfo = {"workflow": "ä" * 10}
    size = len('{"workflow":""}') + 20
    require_small_pnginfo(pnginfo, size)
    with pytest.raises(ParametersInvalid, match=f"{size} bytes as JSON, but at most {size - 1}"):
        require_small_pnginfo(pnginfo, size - 1)


@given(st.dictionaries(st.text(st.characters(max_codepoint=300)), st.text(), max_size=3))
def test_what_is_taken_is_in_the_png_as_it_was_sent(pnginfo: dict[str, str]) -> None:
    try:
        taken = pnginfo_of({"extra_pnginfo": pnginfo})
    except ParametersInvalid:
        return
    text = {name: json.dumps(value) for name, value in taken.items()}
    png = encode_png(np.zeros((1, 1, 3), np.uint8), text)
    found = Image.open(io.BytesIO(png)).info
    assert {name: json.loads(value) for name, value in found.items()} == pnginfo
