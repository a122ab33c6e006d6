"""Texts that this service alone can read."""

import pytest

from storage.sealing import SealBroken, sealed, unsealed

TEXT = "https://bucket.example.com/0.png?X-Amz-Signature=ü"
SECRET = b"a secret"


def test_a_text_comes_back_and_is_not_seen_meanwhile() -> None:
    closed = sealed(SECRET, TEXT)
    assert unsealed(SECRET, closed) == TEXT
    assert "bucket" not in closed
    assert sealed(SECRET, TEXT) != closed


@pytest.mark.parametrize(
    "closed", ["", "x", "ü", sealed(b"another", TEXT), sealed(SECRET, TEXT)[:-4]]
)
def test_what_another_sealed_or_what_is_damaged_is_told_apart(closed: str) -> None:
    with pytest.raises(SealBroken):
        unsealed(SECRET, closed)
