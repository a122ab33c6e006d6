from dataclasses import dataclass

import pytest

from storage.keys import SAFETENSORS
from storage.tokens import file_token, is_file_token, url_for

SECRET = b"a secret of sixteen"


@dataclass
class File:
    index: int
    media_type: str | None


def test_a_token_is_constant_and_safe_in_a_url() -> None:
    token = file_token(SECRET, "job", "0.png")
    assert token == file_token(SECRET, "job", "0.png")
    assert len(token) == 43
    assert token.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    ("secret", "job_id", "name"),
    [(b"another secret....", "job", "0.png"), (SECRET, "other", "0.png"), (SECRET, "job", "1.png")],
)
def test_a_token_opens_one_file_alone(secret: bytes, job_id: str, name: str) -> None:
    token = file_token(SECRET, "job", "0.png")
    assert is_file_token(token, secret=SECRET, job_id="job", name="0.png")
    assert not is_file_token(token, secret=secret, job_id=job_id, name=name)


def test_a_token_with_an_end_opens_only_with_that_end() -> None:
    token = file_token(SECRET, "job", "0.png", expires=12)
    ends = {
        end: is_file_token(token, secret=SECRET, job_id="job", name="0.png", expires=end)
        for end in (12, 13, 1, None)
    }
    assert ends == {12: True, 13: False, 1: False, None: False}
    assert not is_file_token(
        file_token(SECRET, "job", "0.png"), secret=SECRET, job_id="job", name="0.png", expires=12
    )


def test_each_url_that_is_made_works_for_a_while() -> None:
    now = [100.5]
    url = url_for("https://images.example", SECRET, ttl_s=60, clock=lambda: now[0])
    for later_s, expires in ((0, 161), (30, 191)):
        now[0] = 100.5 + later_s
        token = file_token(SECRET, "job", "0.png", expires=expires)
        expected = f"https://images.example/files/job/0.png?token={token}&expires={expires}"
        assert url("job", File(0, None)) == expected


@pytest.mark.parametrize("token", ["", "x", "ü", "\udcff"])
def test_any_text_may_be_tried(token: str) -> None:
    assert not is_file_token(token, secret=SECRET, job_id="job", name="0.png")


@pytest.mark.parametrize(("media_type", "name"), [(None, "3.png"), (SAFETENSORS, "3.latent")])
def test_a_url_names_the_file_and_carries_its_token(media_type: str | None, name: str) -> None:
    url = url_for("https://images.example", SECRET)("job", File(3, media_type))
    token = file_token(SECRET, "job", name)
    assert url == f"https://images.example/files/job/{name}?token={token}"
