import asyncio

from events.errors import DatabaseUnavailable
from serve_app.access.ttl_cache import TtlCache


async def test_a_row_that_was_dropped_while_it_was_loaded_is_not_remembered() -> None:
    rows = {"a": "old"}
    loading, go_on = asyncio.Event(), asyncio.Event()

    async def load(id: str) -> str | None:
        row = rows.get(id)
        loading.set()
        await go_on.wait()
        return row

    cache = TtlCache(load, ttl_s=60)
    first = asyncio.create_task(cache.get("a"))
    await loading.wait()
    rows["a"] = "new"
    cache.drop("a")
    go_on.set()
    assert await first == "old"  # it asked before the change
    assert await cache.get("a") == "new"
    rows["a"] = "newer"
    assert await cache.get("a") == "new"


async def test_what_it_remembers_is_bounded() -> None:
    loads: list[str] = []

    async def load(id: str) -> str | None:
        loads.append(id)
        return None if id.startswith("unknown") else id

    cache = TtlCache(load, ttl_s=60, max_rows=10)
    for number in range(100):
        assert await cache.get(f"row {number}") == f"row {number}"
        assert len(cache._rows) <= 10
    loads.clear()
    for number in range(100):
        assert await cache.get(f"unknown {number}") is None
    assert await cache.get("row 99") == "row 99"
    assert len(loads) == 100  # what does not exist drives nothing out


async def test_requests_that_come_while_a_row_is_loaded_share_it() -> None:
    loads: list[str] = []
    go_on = asyncio.Event()

    async def load(id: str) -> str | None:
        loads.append(id)
        await go_on.wait()
        return id

    cache = TtlCache(load, ttl_s=60)
    waiting = [asyncio.create_task(cache.get("a")) for _ in range(8)]
    await asyncio.sleep(0)
    waiting[0].cancel()  # whoever hangs up leaves the row to the others
    go_on.set()
    assert await asyncio.gather(*waiting[1:]) == ["a"] * 7
    assert loads == ["a"]


async def test_a_row_that_was_missing_as_another_asked_is_looked_for_again() -> None:
    rows: dict[str, str] = {}
    go_on = asyncio.Event()

    async def load(id: str) -> str | None:
        row = rows.get(id)
        await go_on.wait()
        return row

    cache = TtlCache(load, ttl_s=60)
    early = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rows["a"] = "new"
    late = asyncio.create_task(cache.get("a"))
    await asyncio.sleep(0)
    go_on.set()
    assert await early is None
    assert await late == "new"


async def test_a_missing_row_is_looked_for_twice_at_most_for_all_who_ask_at_once() -> None:
    loads: list[str] = []

    async def load(id: str) -> str | None:
        loads.append(id)
        await asyncio.sleep(0)
        return None

    cache = TtlCache(load, ttl_s=60)
    assert await asyncio.gather(*(cache.get("a") for _ in range(8))) == [None] * 8
    assert loads == ["a", "a"]


async def test_whoever_waits_for_a_load_that_fails_is_told() -> None:
    go_on = asyncio.Event()

    async def load(id: str) -> str | None:
        await go_on.wait()
        raise DatabaseUnavailable(id)

    cache = TtlCache(load, ttl_s=60)
    waiting = [asyncio.create_task(cache.get("a")) for _ in range(3)]
    await asyncio.sleep(0)
    go_on.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in failed] == [DatabaseUnavailable] * 3
