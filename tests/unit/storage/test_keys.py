import pytest

from storage.keys import JPEG, PNG, SAFETENSORS, WEBP, file_name


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        (None, "3.png"),
        (PNG, "3.png"),
        (WEBP, "3.webp"),
        (JPEG, "3.jpg"),
        (SAFETENSORS, "3.latent"),
        ("image/avif", "3.bin"),  # a later version's
    ],
)
def test_a_file_is_named_by_its_kind(media_type: str | None, name: str) -> None:
    assert file_name(3, media_type) == name
