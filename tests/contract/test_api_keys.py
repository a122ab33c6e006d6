"""API keys on both databases."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from events.store.database import Database
from events.store.keys import ApiKeys
from events.store.records import ApiKey, KeyLimits, Scope

MORNING = datetime(2026, 3, 1, 8, 30, 0, 123456, tzinfo=UTC)
DAY = timedelta(days=1)
LIMITS = KeyLimits(
    rate_per_s=0.5,
    burst=3,
    max_open_jobs=2**40,
    endpoints=("fast", "default"),
    callback_hosts=("2001:db8::1", "*.example.com"),
    image_format="webp",
    image_quality=100,
)


@pytest.fixture
def keys(database: Database) -> ApiKeys:
    return ApiKeys(database)


def api_key(name: str, **changes: Any) -> ApiKey:
    values: dict[str, Any] = {
        "id": name,
        "owner": "alice",
        "name": f"{name}'s laptop",
        "secret_sha256": "ab" * 32,
        "scopes": frozenset({Scope.READ, Scope.GENERATE}),
        "created_at": MORNING,
    }
    return ApiKey(**(values | changes))


async def test_keys_come_back_as_they_were_added(keys: ApiKeys) -> None:
    tokyo = timezone(timedelta(hours=9))
    first = api_key("first", expires_at=(MORNING + timedelta(days=1)).astimezone(tokyo))
    later = MORNING + timedelta(seconds=1)
    second = api_key("second", scopes=frozenset(), created_at=later, limits=LIMITS)
    await keys.add(second)
    await keys.add(first)
    assert await keys.get("first") == first
    assert await keys.get("third") is None
    assert await keys.all() == [first, second]
    stored = await keys.get("first")
    assert stored is not None
    assert stored.expires_at is not None
    assert stored.expires_at.utcoffset() == timedelta(0)


async def test_a_key_is_revoked_once(keys: ApiKeys) -> None:
    await keys.add(api_key("lost"))
    await keys.add(api_key("kept"))
    assert await keys.revoke("lost", MORNING)
    assert not await keys.revoke("lost", MORNING + timedelta(days=1))
    assert not await keys.revoke("unknown", MORNING)
    assert await keys.get("lost") == api_key("lost", revoked_at=MORNING)
    assert await keys.get("kept") == api_key("kept")


async def test_a_time_without_a_zone_is_refused(keys: ApiKeys) -> None:
    with pytest.raises(Exception, match="without a zone"):
        await keys.add(api_key("naive", created_at=MORNING.replace(tzinfo=None)))
    assert await keys.all() == []


async def test_a_change_leaves_the_rest_alone(keys: ApiKeys) -> None:
    before = api_key("mine", limits=LIMITS)
    await keys.add(before)
    await keys.add(api_key("other"))
    await keys.revoke("mine", MORNING)
    scopes = frozenset({Scope.CANCEL, Scope.ADMIN})
    changes: dict[str, Any] = {"name": "a phone", "scopes": scopes}
    changed = await keys.change("mine", burst=None, endpoints=("slow",), **changes)
    limits = replace(LIMITS, burst=None, endpoints=("slow",))
    assert changed == replace(before, limits=limits, revoked_at=MORNING, **changes)
    assert await keys.get("mine") == changed
    assert await keys.get("other") == api_key("other")
    assert await keys.change("unknown", name="a phone") is None


async def test_pages_are_one_owners_oldest_first(keys: ApiKeys) -> None:
    for number in (3, 1, 2, 0):  # two by two at one instant
        await keys.add(api_key(f"key{number}", created_at=MORNING + number // 2 * DAY))
    await keys.add(api_key("bobs", owner="bob"))
    seen: list[str] = []
    while page := await keys.all(owner="alice", limit=3, after=seen[-1] if seen else None):
        seen += [key.id for key in page]
    assert seen == ["key0", "key1", "key2", "key3"]
    assert await keys.all(after="unknown") == []


class TestRotation:
    async def test_both_keys_live_until_the_grace_is_over(self, keys: ApiKeys) -> None:
        old, new = api_key("old", limits=LIMITS), api_key("new", limits=LIMITS)
        await keys.add(old)
        assert await keys.rotate(old, new, old_ends_at=MORNING + DAY)
        assert await keys.get("old") == replace(old, replaced_by="new", expires_at=MORNING + DAY)
        assert await keys.get("new") == new

    async def test_the_grace_does_not_lengthen_a_life(self, keys: ApiKeys) -> None:
        old = api_key("old", expires_at=MORNING + DAY)
        await keys.add(old)
        assert await keys.rotate(old, api_key("new"), old_ends_at=MORNING + 2 * DAY)
        assert await keys.get("old") == replace(old, replaced_by="new")

    @pytest.mark.parametrize("change", ["revoke", "narrow"])
    async def test_a_key_that_changed_meanwhile_stays_as_it_is(
        self, keys: ApiKeys, change: str
    ) -> None:
        old = api_key("old")
        await keys.add(old)
        if change == "revoke":
            await keys.revoke("old", MORNING)
        else:
            await keys.change("old", scopes=frozenset({Scope.READ}))
        changed = await keys.get("old")
        assert not await keys.rotate(old, api_key("new"), old_ends_at=MORNING + DAY)
        assert await keys.all() == [changed]

    async def test_of_many_at_once_one_is_done(
        self, keys: ApiKeys, other_database: Database
    ) -> None:
        others = ApiKeys(other_database)
        old = api_key("old")
        await keys.add(old)
        outcomes = await asyncio.gather(
            *(
                side.rotate(old, api_key(f"new{n}"), old_ends_at=MORNING + DAY)
                for n, side in enumerate([keys, others] * 4)
            )
        )
        assert outcomes.count(True) == 1
        assert len(await keys.all()) == 2


async def test_live_keys_of_an_owner_are_listed_newest_first(keys: ApiKeys) -> None:
    for key in (
        api_key("oldest"),
        api_key("newest", created_at=MORNING + 2 * DAY),
        api_key("middle", created_at=MORNING + DAY, expires_at=MORNING + 4 * DAY),
        api_key("expired", expires_at=MORNING + 3 * DAY),
        api_key("revoked", revoked_at=MORNING),
        api_key("foreign", owner="bob"),
    ):
        await keys.add(key)
    now = MORNING + 3 * DAY
    assert await keys.live_ids("alice", now=now, most=9) == ["newest", "middle", "oldest"]
    assert await keys.live_ids("alice", now=now, most=2) == ["newest", "middle"]
    assert await keys.live_ids("carol", now=now, most=2) == []
