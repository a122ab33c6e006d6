from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from events.bus.connection import keeping_cancellation
from tests.support.patience import FACTOR


async def swallow(answer: asyncio.Future[int]) -> int:
    """Answers though it is cancelled, as `wait_for` may before Python 3.12."""
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        return await answer


async def with_value(answer: asyncio.Future[int]) -> None:
    with keeping_cancellation():
        await swallow(answer)


async def with_error(answer: asyncio.Future[int]) -> None:
    with keeping_cancellation():
        await swallow(answer)
        raise KeyError("not there")


async def with_timeout(answer: asyncio.Future[int]) -> None:
    with keeping_cancellation():
        async with asyncio.timeout(5 * FACTOR):
            await swallow(answer)


@pytest.mark.parametrize("call", [with_value, with_error, with_timeout])
async def test_a_cancellation_that_a_call_swallows_ends_the_task(
    call: Callable[[asyncio.Future[int]], Awaitable[None]],
) -> None:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await call(answer)
        await asyncio.sleep(3600)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    answer.set_result(1)
    done, _ = await asyncio.wait({task}, timeout=5 * FACTOR)
    assert done
    assert task.cancelled()


async def test_a_timeout_inside_is_a_timeout() -> None:
    with pytest.raises(TimeoutError), keeping_cancellation():
        async with asyncio.timeout(0.01):
            await asyncio.sleep(3600)


async def test_a_timeout_outside_is_a_timeout() -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.01):
            with keeping_cancellation():
                await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await wait()


async def test_without_a_cancellation_nothing_changes() -> None:
    with keeping_cancellation():
        await asyncio.sleep(0)
    with pytest.raises(KeyError), keeping_cancellation():
        raise KeyError("not there")
