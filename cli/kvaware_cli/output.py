"""How figures and tables look: the same words and widths in every command.

On a terminal there is colour (unless NO_COLOR is set) and the terminal's width up to 120 columns. Into a pipe the text
is plain and as wide as it needs to be, as kubectl's is: a name can be searched for, and every row is one line. Figures
are never cut: where a terminal has no room, names are shortened in the middle and lists go on in the next line.
"""

import json
import math
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, Final

import yaml
from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

__all__ = [
    "UNKNOWN",
    "WIDTH",
    "Fact",
    "Listing",
    "console",
    "gib",
    "gib_pair",
    "kept_whole",
    "leading_terms",
    "ms",
    "plural",
    "print_facts",
    "print_raw",
    "print_rule",
    "print_table",
    "seconds",
    "shortened",
    "shown_ms",
    "table",
    "used_of",
]

WIDTH: Final = 100
"""Of ``plain`` text, and of the lines in headings."""
MOST_WIDTH: Final = 120
"""On a terminal: longer lines are hard to read."""
UNLIMITED: Final = 1_000_000
"""The width into a pipe."""
LABEL_WIDTH: Final = 11
GAP: Final = 2
"""Blanks between two columns."""
LEAST_NAME: Final = 16
"""No name is shortened below it; a terminal narrower than that wraps the line itself."""
HANDY_NAME: Final = 40
"""Longer ones are shortened before a list beside them goes on in the next line: it holds a cloud's usual node names."""
Fact = tuple[str, str | Text]
"""A label and what it says."""
_GIB: Final = 1 << 30
UNKNOWN: Final = "?"
"""Nobody tells."""
UNSET: Final = "-"
_NO_BREAK: Final = "\u00a0"


def console(*, plain: bool = False, file: IO[str] | None = None) -> Console:
    """A console on standard output; ``plain`` without colour and 100 columns wide, wherever it goes."""
    out = Console(file=file or sys.stdout, highlight=False, emoji=False, markup=False)
    if plain or not out.is_terminal:
        return Console(
            file=file or sys.stdout, highlight=False, emoji=False, markup=False,
            width=WIDTH if plain else UNLIMITED, force_terminal=False, color_system=None,
        )  # fmt: skip
    out.width = min(out.width, MOST_WIDTH)
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A table before its width is known."""

    columns: tuple[str, ...]
    right: frozenset[str]
    wrap: frozenset[str]
    """Columns whose cells may go on in the next line."""
    names: frozenset[str]
    """Columns whose cells may be shortened in the middle."""
    rows: list[tuple[tuple[str, ...], str]] = field(default_factory=list)
    """Cells and style."""

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a line."""
        self.rows.append((cells, style))

    def cells(self, column: int) -> list[str]:
        """One column, without its heading."""
        return [cells[column] for cells, _ in self.rows]


def table(
    *columns: str,
    right: frozenset[str] = frozenset(),
    wrap: frozenset[str] = frozenset(),
    names: frozenset[str] = frozenset(),
) -> Listing:
    """A table without lines, headings as kubectl writes them."""
    return Listing(columns=columns, right=right, wrap=wrap, names=names)


def kept_whole(text: str) -> str:
    """A part of a cell that must not be broken at its blanks."""
    return text.replace(" ", _NO_BREAK)


def shortened(names: Sequence[str], limit: int) -> list[str]:
    """Each name with its middle left out where it is longer than ``limit``; what would be mistaken stays whole."""
    tail = (limit - 1) // 2
    short = [name if len(name) <= limit else f"{name[: limit - 1 - tail]}…{name[-tail:]}" for name in names]
    meant: dict[str, set[str]] = {}
    for cut, name in zip(short, names, strict=True):
        meant.setdefault(cut, set()).add(name)
    return [cut if len(meant[cut]) == 1 else name for cut, name in zip(short, names, strict=True)]


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
    shown = shown_ms(cost_ms)
    return f"{shown:,.0f}" if abs(cost_ms) >= 10 or cost_ms == 0 else f"{shown:,.1f}"


def shown_ms(cost_ms: float) -> float:
    """The figure that ``ms`` prints, so that a sum can be told that adds up on the screen."""
    return _half_up(cost_ms, 0 if abs(cost_ms) >= 10 else 1)


def seconds(cost_ms: float) -> str:
    """Milliseconds as seconds with one decimal."""
    return f"{_half_up(cost_ms / 1000, 1):,.1f}"


def _half_up(value: float, decimals: int) -> float:
    """As people round; Python's own rounds 1.75 to 1.8 and 1.65 to 1.6."""
    scale = 10.0**decimals
    return math.copysign(math.floor(abs(value) * scale + 0.5) / scale, value)


def leading_terms(terms: dict[str, float], *, total: float, count: int, sign: str = "") -> str:
    """The largest terms, largest first, and what is left, as ``network +13,400, risk -20, other +1``.

    The figures add up to the total as it is shown. What is left below 1 ms is not worth a word.

    Args:
        terms: Milliseconds by name.
        total: Their sum as the reader sees it.
        count: How many are named.
        sign: The format's sign of what is above zero: ``+`` or nothing.
    """
    largest = sorted(terms.items(), key=lambda item: (-abs(item[1]), item[0]))
    named = [(name, value) for name, value in largest[:count] if abs(value) >= 0.05]
    if abs(sum(value for _, value in largest[count:])) >= 1:
        named.append(("other", shown_ms(total) - sum(shown_ms(value) for _, value in named)))
    return ", ".join(f"{name} {sign if value > 0 else ''}{ms(value)}" for name, value in named)


def plural(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_table(out: Console, listing: Listing) -> None:
    """Print a table so that nothing but names is cut."""
    columns = _fitted(listing, out.width)
    made = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in listing.columns:
        made.add_column(name, justify="right" if name in listing.right else "left", no_wrap=True)
    for cells, (_, style) in zip(zip(*columns, strict=True), listing.rows, strict=True):
        made.add_row(*cells, style=style)
    _print(out, made, least=sum(_width(c, name) + GAP for c, name in zip(columns, listing.columns, strict=True)))


def _fitted(listing: Listing, width: int) -> list[list[str]]:
    """The cells by column: names shortened and lists wrapped where the width asks for it."""
    columns = [listing.cells(number) for number in range(len(listing.columns))]

    def left_for(number: int, *, others: Sequence[Sequence[str]]) -> int:
        """What the other columns leave. The last column needs no gap."""
        taken = sum(_width(others[i], listing.columns[i]) for i in range(len(columns)) if i != number)
        return width - taken - GAP * (len(columns) - 1)

    least = [
        _wrapped(cells, 1) if name in listing.wrap else cells
        for cells, name in zip(columns, listing.columns, strict=True)
    ]
    for number, name in enumerate(listing.columns):
        if name in listing.names:
            ample, room = left_for(number, others=columns), left_for(number, others=least)
            limit = max(LEAST_NAME, ample, min(room, HANDY_NAME))
            columns[number] = least[number] = shortened(columns[number], limit)
    for number, name in enumerate(listing.columns):
        if name in listing.wrap:
            columns[number] = _wrapped(columns[number], max(1, left_for(number, others=columns)))
    return columns


def _width(cells: Sequence[str], heading: str) -> int:
    return max(len(line) for cell in (heading, *cells) for line in (cell.splitlines() or [""]))


def _wrapped(cells: Sequence[str], width: int) -> list[str]:
    """Cells with line breaks at their blanks; a longer word stays whole."""
    return [
        "\n".join(textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)).replace(_NO_BREAK, " ")
        for cell in cells
    ]


def print_facts(out: Console, facts: Iterable[Fact], *, indent: int = LABEL_WIDTH) -> None:
    """Print labelled lines; what does not fit goes on under its own beginning.

    A label too long for its column, such as a node's name, begins a line of plain text.
    """
    for label, text in facts:
        if len(label) >= indent:
            out.print(Text.assemble(label, "  ", text), soft_wrap=out.width == UNLIMITED)
            continue
        made = Table.grid(padding=(0, 0))
        made.add_column(width=indent)
        made.add_column(overflow="fold")
        made.add_row(label, text)
        _print(out, made)


def _print(out: Console, made: Table, *, least: int = 0) -> None:
    """Print a table, at least ``least`` columns wide; into a pipe without the blanks that fill its columns."""
    width, out.width = out.width, max(out.width, least)
    try:
        if out.is_terminal:
            out.print(made, crop=False)
            return
        with out.capture() as captured:
            out.print(made, crop=False)
        out.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    finally:
        out.width = width


def print_rule(out: Console, title: str) -> None:
    """A heading with a line behind it."""
    out.print()
    rule = Rule(Text(title, style="bold"), align="left", characters="─" if out.encoding.startswith("utf") else "-")
    out.print(rule, width=min(out.width, WIDTH))


def print_raw(out: Console, answers: Sequence[Any], output: str) -> None:
    """Answers as the extender gave them, one document each, past the console: it would break long lines."""
    if output == "yaml":
        out.file.write(yaml.safe_dump_all(answers, sort_keys=False, allow_unicode=True))
        return
    for answer in answers:
        out.file.write(json.dumps(answer, indent=2) + "\n")
