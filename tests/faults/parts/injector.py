"""Injects the faults of a schedule into the parts of a machine."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import psutil
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig

from events.bus.streams import JOBS, QUEUE
from tests.faults.checker.record import Record
from tests.faults.parts import databases
from tests.faults.parts.nats_servers import NatsNode
from tests.faults.parts.parts import Parts, undone_after
from tests.faults.schedule import ROLES, Planned
from tests.support.link import Direction, Link

logger = logging.getLogger(__name__)

_CLOCK_STEP_S = 30.0
_ROOM_BYTES = 2_000
"""The room in a full log, enough for a few events."""


class Injector:
    """An injector of faults. Each fault is over and undone when its `inject` returns."""

    def __init__(self, machine: Parts, record: Record, *, seed: int) -> None:
        self._machine = machine
        self._record = record
        self._ray = machine.ray()
        self._chance = random.Random(f"injector {seed}")

    async def run(self, plan: list[Planned]) -> None:
        """Inject each fault at its time. Faults may overlap."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for planned in plan:
                await asyncio.sleep(began + planned.at_s - time.monotonic())
                group.create_task(self.inject(planned))

    async def inject(self, planned: Planned) -> None:
        name, began = planned.kind.name, time.time()
        try:
            hit = await self._act(name, planned.lasts_s)
        except Exception:
            logger.warning("fault missed", extra={"action": name}, exc_info=True)
            hit = False
        ended = time.time() if planned.lasts_s else None
        self._record.add("fault", kind=name, began=began, ended=ended, hit=hit)

    async def _act(self, name: str, lasts_s: float) -> bool:
        """Inject a fault; return whether there was something to harm."""
        machine = self._machine
        acts: dict[str, Callable[[float], Awaitable[bool]]] = {
            "nats_kill": lambda s: self._kill_nats(self._chance.choice(machine.nats.nodes), s),
            "nats_stop": lambda s: self._stop_nats(self._chance.choice(machine.nats.nodes), s),
            "leader_kill": self._kill_leader,
            "leader_stop": self._stop_leader,
            "follower_kill": self._kill_follower,
            "log_cut": partial(self._harm_cable, Link.cut),
            "answers_lost": partial(self._harm_cable, lambda it: it.swallow(Direction.ANSWERS)),
            "acks_lost": partial(self._harm_cable, lambda it: it.swallow(Direction.REQUESTS)),
            "redelivery": self._redeliver,
            "log_full": self._fill_log,
            "projection_stop": lambda s: self._stop(self._ray.pids("projection"), s),
            "database_locked": partial(databases.lock, machine),
            "database_dead": partial(databases.lose, machine),
            "database_stop": partial(databases.freeze, machine),
            "models_hang": self._hang_models,
            "engine_memory": self._take_memory,
            "clock_ahead": partial(self._step_clock, _CLOCK_STEP_S),
            "clock_behind": partial(self._step_clock, -_CLOCK_STEP_S),
            "node_kill": machine.lose_node,
        }
        if (act := acts.get(name)) is not None:
            return await act(lasts_s)
        part, _, what = name.rpartition("_")
        pids = await asyncio.to_thread(self._pids, part)
        return await (self._kill(pids) if what == "kill" else self._stop(pids, lasts_s))

    # Processes.

    def _pids(self, part: str) -> list[int]:
        """Return one process of the part, or none."""
        if part == "haproxy":
            pids = self._machine.processes.named("haproxy")
        elif part in ROLES:
            pids = self._ray.pids(part)
        else:
            pids = self._machine.processes.titled(part)
        return [self._chance.choice(pids)] if pids else []

    async def _kill(self, pids: list[int]) -> bool:
        return bool(await asyncio.to_thread(self._machine.processes.signal, pids, signal.SIGKILL))

    async def _stop(self, pids: list[int], lasts_s: float) -> bool:
        signal_to = self._machine.processes.signal
        stopped = await asyncio.to_thread(signal_to, pids, signal.SIGSTOP)
        await undone_after(lasts_s, partial(signal_to, stopped, signal.SIGCONT))
        return bool(stopped)

    # Faults of the event log.

    async def _kill_nats(self, node: NatsNode, lasts_s: float) -> bool:
        await asyncio.to_thread(node.kill)
        return await undone_after(lasts_s, partial(self._machine.nats.start_one, node))

    async def _stop_nats(self, node: NatsNode, lasts_s: float) -> bool:
        node.signal(signal.SIGSTOP)
        return await undone_after(lasts_s, partial(node.signal, signal.SIGCONT))

    async def _kill_leader(self, lasts_s: float) -> bool:
        return await self._kill_nats(await self._machine.nats.leader(JOBS), lasts_s)

    async def _stop_leader(self, lasts_s: float) -> bool:
        return await self._stop_nats(await self._machine.nats.leader(JOBS), lasts_s)

    async def _kill_follower(self, lasts_s: float) -> bool:
        leader = await self._machine.nats.leader(JOBS)
        followers = [each for each in self._machine.nats.nodes if each is not leader]
        return await self._kill_nats(self._chance.choice(followers), lasts_s)

    async def _harm_cable(self, harm: Callable[[Link], None], lasts_s: float) -> bool:
        if (cable := self._machine.cable) is None:
            return False
        harm(cable)
        return await undone_after(lasts_s, cable.heal)

    async def _redeliver(self, _lasts_s: float) -> bool:
        """Deliver each held entry again, as after an expired lease.

        The durable consumer of a lane is removed, and its reader creates it again.
        """
        async with self._machine.nats.client() as client:
            js = client.jetstream(timeout=2)
            held = [each for each in await js.consumers_info(QUEUE) if each.num_ack_pending]
            for consumer in held:
                await js.delete_consumer(QUEUE, consumer.name)
            await js.delete_consumer(JOBS, "router")
        return True

    async def _fill_log(self, lasts_s: float) -> bool:
        before = await self._limit_log(None)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            for _ in range(50):  # another fault may have stopped the server
                with suppress(NatsError, OSError, TimeoutError):
                    await self._limit_log(before)
                    break
                await asyncio.sleep(0.5)
        return True

    async def _limit_log(self, max_bytes: int | None) -> int:
        """Set the log's size, to the present one if None is given; return the earlier one."""
        async with self._machine.nats.client() as client:
            js = client.jetstream(timeout=2)
            info = await js.stream_info(JOBS)
            config: StreamConfig = info.config
            before = int(config.max_bytes or -1)
            wanted = info.state.bytes + _ROOM_BYTES if max_bytes is None else max_bytes
            await js.update_stream(config.evolve(max_bytes=wanted))
            return before

    # Faults inside processes.

    async def _hang_models(self, lasts_s: float) -> bool:
        switch = self._machine.control / "hang"
        switch.touch()
        return await undone_after(lasts_s, partial(switch.unlink, missing_ok=True))

    async def _take_memory(self, lasts_s: float) -> bool:
        """Prevent an engine from allocating more memory."""
        pids = await asyncio.to_thread(self._pids, "engine")
        for pid in pids:
            process = psutil.Process(pid)
            soft, hard = process.rlimit(resource.RLIMIT_DATA)
            resource.prlimit(pid, resource.RLIMIT_DATA, (process.memory_info().data, hard))
            try:
                await asyncio.sleep(lasts_s)
            finally:
                with suppress(OSError):
                    resource.prlimit(pid, resource.RLIMIT_DATA, (soft, hard))
        return bool(pids)

    async def _step_clock(self, step_s: float, lasts_s: float) -> bool:
        pids = await asyncio.to_thread(self._pids, self._chance.choice(ROLES))
        for pid in pids:
            switch = self._machine.control / f"clock.{pid}"
            switch.write_text(str(step_s))
            await undone_after(lasts_s, partial(switch.unlink, missing_ok=True))
        return bool(pids)
