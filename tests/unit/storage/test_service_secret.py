"""Values derived from the secret of the service, and the names of files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from storage.file_names import JPEG, PNG, SAFETENSORS, WEBP, file_name
from storage.service_secret import SealBroken, file_token, is_file_token, sealed, unsealed, url_for

SECRET = b"a secret of sixteen"


@dataclass
class File:
    name: str


def test_a_token_is_constant_and_safe_in_a_url() -> None:
    token = file_token(SECRET, "job", "0.png")
    assert token == file_token(SECRET, "job", "0.png")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)


def opens(token: str, **other: Any) -> bool:
    usual: dict[str, Any] = {"secret": SECRET, "job_id": "job", "name": "0.png"}
    return is_file_token(token, **(usual | other))


def test_a_token_opens_one_file_alone() -> None:
    token = file_token(SECRET, "job", "0.png")
    assert opens(token)
    for name, other in (("secret", b"another"), ("job_id", "other"), ("name", "1.png")):
        assert not opens(token, **{name: other}), name


def test_a_token_with_an_end_opens_only_with_that_end() -> None:
    token = file_token(SECRET, "job", "0.png", expires=12)
    ends = {end: opens(token, expires=end) for end in (12, 13, 1, None)}
    assert ends == {12: True, 13: False, 1: False, None: False}
    assert not opens(file_token(SECRET, "job", "0.png"), expires=12)


def test_each_url_that_is_made_works_for_a_while() -> None:
    now = [100.5]
    url = url_for("https://images.example", SECRET, ttl_s=60, clock=lambda: now[0])
    for later_s, expires in ((0, 161), (30, 191)):
        now[0] = 100.5 + later_s
        token = file_token(SECRET, "job", "0.png", expires=expires)
        expected = f"https://images.example/files/job/0.png?token={token}&expires={expires}"
        assert url("job", File("0.png")) == expected


@pytest.mark.parametrize("token", ["", "x", "ü", "\udcff"])
def test_any_text_may_be_tried(token: str) -> None:
    assert not opens(token)


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
    with pytest.raises(SealBroken, match="another DARKROOM_SECRET"):
        unsealed(SECRET, closed)


@pytest.mark.parametrize(
    ("media_type", "name"),
    [
        (None, "3.png"),
        (PNG, "3.png"),
        (WEBP, "3.webp"),
        (JPEG, "3.jpg"),
        (SAFETENSORS, "3.latent"),
        ("image/new", "3.bin"),  # a later version's
    ],
)
def test_a_url_names_the_file_by_its_kind_and_carries_its_token(
    media_type: str | None, name: str
) -> None:
    assert file_name(3, media_type) == name
    url = url_for("https://images.example", SECRET)("job", File(name))
    token = file_token(SECRET, "job", name)
    assert url == f"https://images.example/files/job/{name}?token={token}"
