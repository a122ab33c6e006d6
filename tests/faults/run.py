"""`python -m tests.faults.run --duration 1800 --seed 7`: faults under load, then the checks.

`--check FILE` reads the history of an earlier run and checks it again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nats.errors import Error as NatsError

from events.errors import DatabaseUnavailable
from examples.service import DARKROOM
from storage.images import ImageStoreError
from tests.faults.checker.gather import gather
from tests.faults.checker.history import Folded, History, from_record
from tests.faults.checker.invariants import violations
from tests.faults.checker.leftovers import after_the_service, beside_the_service
from tests.faults.checker.record import Record, read_record
from tests.faults.load import OWNERS, Load
from tests.faults.parts.injector import Injector
from tests.faults.parts.machine import FAR, Machine, machine
from tests.faults.parts.receivers import Receivers
from tests.faults.schedule import Planned, kinds_for, schedule
from tests.faults.table import table

_SETTLE_S = 240.0
_QUIET_S = 90.0
_ASK_S = 120.0
_VERIFY_S = 300.0
_LOOK_AGAIN_S = 3.0
"""Between two looks at what the service has stored, until all that must hold does."""


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    found: Mapping[str, Sequence[str]]

    @property
    def holds(self) -> bool:
        return not any(self.found.values())


async def run(
    *,
    seed: int,
    duration_s: float,
    out: Path,
    is_cluster: bool = False,
    only: Collection[str] = (),
) -> Outcome:
    """One run. Its record and its history are written below `out`.

    `only`: the kinds of faults that are injected; all, if empty.
    """
    out.mkdir(parents=True, exist_ok=True)
    record_path = out / "record.jsonl"
    record_path.unlink(missing_ok=True)
    plan = schedule(seed, duration_s, kinds=kinds_for(is_cluster=is_cluster, only=only))
    _say(f"seed {seed}, {duration_s:g} s, {'a cluster' if is_cluster else 'one machine'}")
    _say("\n".join(map(str, plan)))
    async with AsyncExitStack() as stack:
        record = Record(record_path)
        stack.callback(record.close)
        receivers = Receivers(record, seed=seed)
        await receivers.start()
        stack.push_async_callback(receivers.close)
        one = await stack.enter_async_context(machine(is_cluster=is_cluster))
        load = await _load(one, receivers, record, seed=seed)
        stack.push_async_callback(load.close)
        injector = Injector(one, record, seed=seed)
        _say("up; the load begins")
        await _under_load(load, injector, plan, duration_s=duration_s)
        _say("no more faults; waiting for what is open")
        history = await _afterwards(one, load, record)
    history.save(out / "history.json")
    return check(history)


def check(history: History) -> Outcome:
    run = Folded(history)
    found = violations(run)
    return Outcome(table(run, found), found)


async def _load(one: Machine, receivers: Receivers, record: Record, *, seed: int) -> Load:
    keys = {}
    for owner in OWNERS:
        made = await asyncio.to_thread(one.service.command, "keys", "create", owner)
        keys[owner], secret = made.stdout.split()
        receivers.accept_secret(owner, secret)
    return Load(
        one.service.url,
        keys=keys,
        receivers=receivers,
        record=record,
        seed=seed,
        endpoints=("default", "default", FAR) if one.is_cluster else ("default",),
    )


async def _under_load(
    load: Load, injector: Injector, plan: list[Planned], *, duration_s: float
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run(duration_s))
        group.create_task(injector.run(plan))


async def _afterwards(one: Machine, load: Load, record: Record) -> History:
    """The history, once all that must hold does, or the time for that is over."""
    began = time.monotonic()
    await load.settle(within_s=_SETTLE_S)
    _say(f"settled after {time.monotonic() - began:.0f} s, seen open: {sorted(load.open)}")
    await load.ask_all(within_s=_ASK_S)
    history = await _settled_history(one, record)
    try:
        history.disagreements = await _last_disagreements(one)
    except subprocess.TimeoutExpired:
        history.disagreements = [f"it took longer than {_VERIFY_S:g} s"]
    if one.far_node is not None:
        await asyncio.to_thread(one.far_node.kill)
    try:
        await asyncio.to_thread(one.service.close)
    except subprocess.TimeoutExpired as error:
        history.leftovers.append(f"the service did not stop within {error.timeout:g} s")
    history.leftovers += await asyncio.to_thread(after_the_service, one)
    return history


async def _settled_history(one: Machine, record: Record) -> History:
    """Looks again until all that must hold does, or the time for that is over."""
    give_up_at = time.monotonic() + _QUIET_S
    while True:
        is_last = time.monotonic() > give_up_at
        try:
            history = await _gathered(one, record)
        except (NatsError, OSError, DatabaseUnavailable, ImageStoreError):
            if is_last:
                raise
        else:
            if is_last or check(history).holds:
                return history
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _gathered(one: Machine, record: Record) -> History:
    history = from_record(read_record(record.path))
    async with one.nats.client() as client:
        await gather(history, client, one.images, database_url=one.database_url)
        history.leftovers = await beside_the_service(one, client)
    return history


async def _last_disagreements(one: Machine) -> list[str]:
    """What stays: the janitor removes what late writers left, once it has been replaced itself."""
    give_up_at = time.monotonic() + _QUIET_S
    while True:
        found = await asyncio.to_thread(_verified, one)
        if not found or time.monotonic() > give_up_at:
            return found
        await asyncio.sleep(_LOOK_AGAIN_S)


def _verified(one: Machine) -> list[str]:
    """What `darkroom verify` tells."""
    done = subprocess.run(
        [DARKROOM, "verify", "--json"],
        env=one.service.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_VERIFY_S,
    )
    if done.returncode == 0:
        return []
    return [f"exit code {done.returncode}: {done.stdout[:4000]} {done.stderr[:500]}"]


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> int:
    arguments = _arguments()
    if arguments.check is not None:
        outcome = check(History.load(arguments.check))
        _say(f"\n{outcome.text}")
        return 0 if outcome.holds else 1
    holds = True
    for name, share in (("one", 0.6), ("cluster", 0.4)):
        if arguments.on not in {name, "both"}:
            continue
        duration_s = arguments.duration * (share if arguments.on == "both" else 1)
        out = arguments.out / f"{arguments.seed}-{name}"
        work = run(
            seed=arguments.seed,
            duration_s=duration_s,
            out=out,
            is_cluster=name == "cluster",
            only=arguments.only,
        )
        outcome = asyncio.run(_until_terminated(work))
        _say(f"\n{outcome.text}")
        holds = holds and outcome.holds
    return 0 if holds else 1


async def _until_terminated(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """SIGTERM ends it as Ctrl-C does, so that nothing that was started is left."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=1800.0, help="seconds under load")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--on", choices=("one", "cluster", "both"), default="both")
    parser.add_argument("--only", nargs="*", default=(), help="kinds of faults")
    parser.add_argument("--out", type=Path, default=Path("build/faults"))
    parser.add_argument("--check", type=Path, help="history.json of an earlier run")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
