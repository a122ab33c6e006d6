import asyncio

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
