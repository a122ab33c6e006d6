"""Calls of Ray that block, in threads of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ray.exceptions import RayError

from actors.dispatch.cluster import ActorUnavailable

T = TypeVar("T")


class RayCalls:
    """What waits for Ray waits here, and holds up nothing but other calls of Ray.

    The loop's own threads are few, and everything else of the process goes through them.
    """

    def __init__(self, *, at_once: int) -> None:
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="ray")

    async def run(self, call: Callable[[], T]) -> T:
        """The answer. Raises ActorUnavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except (RayError, ValueError) as error:
            raise ActorUnavailable(str(error)) from error
