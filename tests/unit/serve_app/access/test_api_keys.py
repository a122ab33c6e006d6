import string
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.store.records import Scope
from events.webhook_secret import webhook_secret
from serve_app.access.api_keys import mint, parse

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_minted_key_opens_its_row() -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    parsed = parse(text)
    assert parsed is not None
    assert parsed.id == key.id
    assert parsed.opens(key)
    assert (key.owner, key.name, key.scopes) == ("alice", "laptop", {Scope.READ})


def test_the_row_does_not_hold_the_secret() -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    secret = text.split("_")[2]
    assert secret not in repr(key)
    assert len(secret) * 5.95 >= 128  # bits, at 62 letters


def test_a_key_does_not_open_another_row() -> None:
    text, _ = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    _, other = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    parsed = parse(text)
    assert parsed is not None
    assert not parsed.opens(other)


def test_one_wrong_letter_is_told_without_asking_anybody() -> None:
    text, _ = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    for index, right in enumerate(text):
        for letter in string.ascii_letters + string.digits + "_":
            assert letter == right or parse(text[:index] + letter + text[index + 1 :]) is None


@settings(deadline=None)
@given(st.text())
def test_any_text_may_be_parsed(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("change", [str.upper, lambda text: text + "\n", lambda text: text[:-1]])
def test_other_forms_are_no_key(change: object) -> None:
    text, _ = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    assert parse(change(text)) is None  # type: ignore[operator]  # one of the functions above


def test_a_webhook_secret_is_constant_and_the_keys_own() -> None:
    secret = webhook_secret(b"service", "key-1")
    assert secret == webhook_secret(b"service", "key-1")
    assert secret.startswith("whsec_")
    assert secret not in {webhook_secret(b"service", "key-2"), webhook_secret(b"other", "key-1")}
