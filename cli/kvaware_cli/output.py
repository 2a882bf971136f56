"""How figures and tables look: the same words and widths in every command.

On a terminal there is colour (unless NO_COLOR is set) and the terminal's width up to 100 columns. Into a pipe the text
is plain and always 100 columns wide, so that it can be compared and searched.
"""

import sys
from collections.abc import Iterable
from typing import IO, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "WIDTH",
    "Fact",
    "console",
    "gib",
    "gib_pair",
    "leading_terms",
    "ms",
    "plural",
    "print_facts",
    "print_table",
    "table",
    "used_of",
]

WIDTH: Final = 100
LABEL_WIDTH: Final = 11
Fact = tuple[str, str | Text]
"""A label and what it says."""
_GIB: Final = 1 << 30
UNKNOWN: Final = "?"
UNSET: Final = "-"


def console(*, plain: bool = False, file: IO[str] | None = None) -> Console:
    """A console on standard output; ``plain`` as if it were a pipe."""
    out = Console(file=file or sys.stdout, highlight=False, emoji=False, markup=False)
    if plain or not out.is_terminal:
        return Console(
            file=file or sys.stdout, highlight=False, emoji=False, markup=False,
            width=WIDTH, force_terminal=False, color_system=None,
        )  # fmt: skip
    out.width = min(out.width, WIDTH)
    return out


def table(*columns: str, right: frozenset[str] = frozenset(), wrap: frozenset[str] = frozenset()) -> Table:
    """A table without lines, headings as kubectl writes them; columns not named in ``wrap`` keep to one line."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column not in wrap)
    return made


def gib(size_bytes: int | None) -> str:
    """Bytes in GiB, one decimal; unknown is ``?``."""
    return UNKNOWN if size_bytes is None else f"{size_bytes / _GIB:.1f}"


def gib_pair(part_bytes: int | None, whole_bytes: int | None) -> str:
    """``free/whole`` in GiB."""
    return f"{gib(part_bytes)}/{gib(whole_bytes)}"


def used_of(used: str, limit: str | None) -> str:
    """``used/limit``; no limit is ``-``."""
    return f"{used}/{UNSET if limit is None else limit}"


def ms(cost_ms: float) -> str:
    """Milliseconds with thousands separated; a fraction only where it is all there is."""
    return f"{cost_ms:,.0f}" if abs(cost_ms) >= 10 or cost_ms == 0 else f"{cost_ms:,.1f}"


def leading_terms(terms: dict[str, float], *, count: int = 2) -> str:
    """The largest terms of a cost, largest first, as ``network 13,400, memory_pressure 200``."""
    largest = sorted(terms.items(), key=lambda item: (-abs(item[1]), item[0]))
    return ", ".join(f"{name} {ms(value)}" for name, value in largest[:count] if abs(value) >= 0.05)


def plural(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_table(out: Console, made: Table) -> None:
    """Print a table; into a pipe without the blanks that fill its columns."""
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as captured:
        out.print(made)
    for line in captured.get().splitlines():
        out.out(line.rstrip())


def print_facts(out: Console, facts: Iterable[Fact], *, indent: int = LABEL_WIDTH) -> None:
    """Print labelled lines; what does not fit goes on under its own beginning."""
    made = Table.grid(padding=(0, 0))
    made.add_column(width=indent)
    made.add_column()
    for label, text in facts:
        made.add_row(label, text)
    print_table(out, made)
