"""Rows of a bench run: printed as a table, written to ``build/bench.json``."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["Row", "percentile", "print_rows", "write_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure, beside what it is compared with in the same run."""

    name: str
    value: float
    unit: str
    against: str
    """What the ratio divides by; empty where the figure stands alone."""
    ratio: float | None
    reach: str
    """The target, in words."""
    ok: bool


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the values lie, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write ``build/bench.json``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")


def print_rows(rows: Sequence[Row]) -> None:
    """Print the table and the machine."""
    table = Table(box=None, pad_edge=False, title=None)
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("ratio", justify="right")
    table.add_column("target")
    table.add_column("")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} x {row.against}"
        table.add_row(row.name, f"{row.value:,.3f} {row.unit}", ratio, row.reach, "ok" if row.ok else "MISSED")
    console = Console(width=140)
    console.print(table)
    console.print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}", style="dim")
