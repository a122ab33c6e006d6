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
