"""Measures the service under load, beside programs without a service, in every scenario. A run
takes minutes.

Jobs are 64 px images in 20 steps of the tiny checkpoint, as ComfyUI graphs over HTTP. The service
has default settings, except for the limits of one owner. Compared programs alternate.

usage: python -m benchmarks.suite [--only idle,sweep] [--load-s 15] [--device cpu] [--json FILE]
           [--smoke] [DARKROOM_NAME=value ...]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.installation import installation
from benchmarks.harness.report import Report
from benchmarks.scenarios import alone, cold, idle, saturated, sweep
from benchmarks.scenarios.bench import SMOKE, Bench, Size

SCENARIOS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "idle": idle.run,
    "alone": alone.run,
    "saturated": saturated.run,
    "sweep": sweep.run,
    "cold": cold.run,
}


def main() -> None:
    args = _arguments()
    size = SMOKE if args.smoke else replace(Size(), load_s=args.load_s)
    report = Report("suite")
    settings = dict(each.split("=", 1) for each in args.settings)
    with installation(settings, copies=size.copies) as service:
        asyncio.run(_run(Bench(service, report, size, device=args.device), args.only))
    report.write(args.json)


async def _run(bench: Bench, names: Sequence[str]) -> None:
    await bench.first_job()
    for name in names:
        await SCENARIOS[name](bench)
        bench.installation.settle()
    bench.caller.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite")
    parser.add_argument("--only", type=_names, default=list(SCENARIOS))
    parser.add_argument("--device", default="cpu", help="of the peers")
    parser.add_argument("--load-s", type=float, default=Size().load_s)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="show that everything runs")
    parser.add_argument("settings", nargs="*")
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"no scenario {sorted(unknown)}")
    return names


if __name__ == "__main__":
    main()
