"""The kind and the media type of a file by its name."""

from __future__ import annotations

import pytest

from storage.file_names import is_media_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.png", True),
        ("a.MP4", True),
        ("a.latent", True),
        ("a.LATENT", True),
        ("latent", False),
        ("a.safetensors", False),
    ],
)
def test_a_name_with_the_suffix_of_a_medium_is_recognised_in_any_case(
    name: str, *, expected: bool
) -> None:
    assert is_media_name(name) is expected
