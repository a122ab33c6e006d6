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
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.checker.history import Folded, History
from tests.faults.checker.invariants import violations
from tests.faults.checker.leftovers import after_the_service
from tests.faults.checker.record import Record
from tests.faults.checker.settled import settled_history
from tests.faults.load import Load, load_on
from tests.faults.parts.injector import Injector
from tests.faults.parts.machine import Machine, machine
from tests.faults.schedule import kinds_for, schedule
from tests.faults.table import table

_SETTLE_S = 240.0
_ASK_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    found: Mapping[str, Sequence[str]]

    @property
    def holds(self) -> bool:
        return not any(self.found.values())


async def run(*, seed: int, duration_s: float, out: Path, only: Collection[str] = ()) -> Outcome:
    """Run once and write record and history below `out`. `only`: the kinds of faults to inject; all
    if it is empty.
    """
    out.mkdir(parents=True, exist_ok=True)
    record_path = out / "record.jsonl"
    record_path.unlink(missing_ok=True)
    plan = schedule(seed, duration_s, kinds=kinds_for(only=only))
    _say(f"seed {seed}, {duration_s:g} s")
    _say("\n".join(map(str, plan)))
    with closing(Record(record_path)) as record:
        async with machine() as one, load_on(one, one.service.url, record, seed=seed) as load:
            injector = Injector(one, record, seed=seed)
            _say("up; the load begins")
            async with asyncio.TaskGroup() as group:
                group.create_task(load.run(duration_s))
                group.create_task(injector.run(plan))
            _say("no more faults; waiting for what is open")
            history = await _afterwards(one, load, record)
    history.save(out / "history.json")
    return check(history)


def check(history: History) -> Outcome:
    run = Folded(history)
    found = violations(run)
    return Outcome(table(run, found), found)


async def _afterwards(one: Machine, load: Load, record: Record) -> History:
    """Return the history once all invariants hold, or after the time-out."""
    began = time.monotonic()
    await load.settle(within_s=_SETTLE_S)
    _say(f"settled after {time.monotonic() - began:.0f} s, seen open: {sorted(load.open)}")
    await load.ask_all(within_s=_ASK_S)
    history = await settled_history(one, record)
    try:
        await asyncio.to_thread(one.service.close)
    except subprocess.TimeoutExpired as error:
        history.leftovers.append(f"the service did not stop within {error.timeout:g} s")
    history.leftovers += await asyncio.to_thread(after_the_service, one)
    return history


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def main() -> int:
    arguments = _arguments()
    if arguments.check is not None:
        outcome = check(History.load(arguments.check))
    else:
        work = run(
            seed=arguments.seed,
            duration_s=arguments.duration,
            out=arguments.out / str(arguments.seed),
            only=arguments.only,
        )
        outcome = asyncio.run(_until_terminated(work))
    _say(f"\n{outcome.text}")
    return 0 if outcome.holds else 1


async def _until_terminated(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """End at SIGTERM as at Ctrl-C, so that all started processes are ended."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=1800.0, help="seconds under load")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=(), help="kinds of faults")
    parser.add_argument("--out", type=Path, default=Path("build/faults"))
    parser.add_argument("--check", type=Path, help="history.json of an earlier run")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
