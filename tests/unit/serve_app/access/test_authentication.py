import string
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.store.records import Scope
from serve_app.access.api_keys import Authenticator, mint, parse
from serve_app.refusals import KeyInvalid
from storage.service_secret import webhook_secret
from tests.support.edge import Client, Edge

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_minted_key_opens_its_row_which_does_not_show_the_secret_or_its_hash() -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    parsed = parse(text)
    assert parsed is not None
    assert parsed.id == key.id
    assert parsed.opens(key)
    assert (key.owner, key.name, key.scopes) == ("alice", "laptop", {Scope.READ})
    secret = text.split("_")[2]
    assert secret not in repr(key)
    assert key.secret_sha256 not in repr(key)
    assert len(secret) * 5.95 >= 128  # bits, at 62 letters


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


async def test_a_key_expires_while_it_is_remembered(edge: Edge) -> None:
    now = datetime.now(UTC)
    authenticator = Authenticator(edge.services.keys, ttl_s=5, now=lambda: now, clock=lambda: 0.0)
    text = await edge.key(expires_at=now + timedelta(seconds=1))
    await authenticator.authenticate(f"Bearer {text}")
    now += timedelta(seconds=1)
    with pytest.raises(KeyInvalid, match="expired"):
        await authenticator.authenticate(f"Bearer {text}")


async def test_a_key_that_is_made_after_a_refusal_works_at_once(edge: Edge) -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    authenticator = Authenticator(edge.services.keys, ttl_s=5, clock=lambda: 0.0)
    with pytest.raises(KeyInvalid, match="no such"):
        await authenticator.authenticate(f"Bearer {text}")
    await edge.services.keys.add(key)
    assert await authenticator.authenticate(f"Bearer {text}") == key


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer nonsense", "Bearer dk_a_b_c", "dk_a_b_c", "ä"],
)
async def test_what_is_no_key_is_401(anyone: Client, header: str) -> None:
    answer = await anyone.get("/v1/jobs", headers={"Authorization": header.encode()})
    assert answer.status_code == 401


async def test_the_scheme_may_be_in_any_case(edge: Edge, anyone: Client) -> None:
    key = await edge.key()
    for scheme in ("bearer", "BEARER", "Bearer "):
        answer = await anyone.get("/v1/jobs", headers={"Authorization": f"{scheme} {key}"})
        assert answer.status_code == 200


async def test_a_key_with_another_secret_is_not_known(edge: Edge) -> None:
    text, key = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    _, other = mint("alice", "laptop", [Scope.READ], created_at=NOW)
    await edge.services.keys.add(replace(key, secret_sha256=other.secret_sha256))
    async with edge.client_with(text) as client:
        assert (await client.get("/v1/jobs")).status_code == 401
