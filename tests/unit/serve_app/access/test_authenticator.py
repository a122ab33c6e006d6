from datetime import UTC, datetime, timedelta

import pytest

from events.store.records import Scope
from serve_app.access.api_keys import mint
from serve_app.access.authenticator import Authenticator
from serve_app.refusals import KeyInvalid
from tests.support.edge import Edge

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_a_revocation_holds_within_ten_seconds(edge: Edge) -> None:
    clock_s = 0.0
    keys = edge.services.keys
    authenticator = Authenticator(keys, ttl_s=5, clock=lambda: clock_s)
    text = await edge.key()
    key = await authenticator.authenticate(f"Bearer {text}")
    await keys.revoke(key.id, datetime.now(UTC))
    clock_s = 10.0
    with pytest.raises(KeyInvalid, match="revoked"):
        await authenticator.authenticate(f"Bearer {text}")


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
    with pytest.raises(KeyInvalid, match="not known"):
        await authenticator.authenticate(f"Bearer {text}")
    await edge.services.keys.add(key)
    assert await authenticator.authenticate(f"Bearer {text}") == key
