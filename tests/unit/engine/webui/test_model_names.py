from __future__ import annotations

import pytest

from engine.webui.model_names import listed_name


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
