"""Cut the example trace out of Mooncake's: ``python -m kvaware_testing.sample_trace TRACE > examples/traces/…``.

Whole conversations are taken, each n-th of them by its first request in the stretch: consecutive lines of so short a
stretch would hardly ever come back to a conversation, which is what a cache is there for. Lines are copied as they are.
"""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

__all__ = ["sample"]


def sample(lines: Iterable[str], *, until_s: float, each: int) -> Iterator[str]:
    """Every ``each``-th conversation of the trace's first ``until_s`` seconds.

    All requests of the trace share their first block, so a conversation is told by the second.
    """
    order: dict[int, int] = {}
    numbers = count()
    for line in lines:
        record = json.loads(line)
        if record["timestamp"] >= 1000 * until_s:
            return
        conversation = record["hash_ids"][1]
        if conversation not in order:
            order[conversation] = next(numbers)
        if order[conversation] % each == 0:
            yield line


def main() -> None:
    """Write the sample to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--until-s", type=float, default=1200.0)
    parser.add_argument("--each", type=int, default=9)
    asked = parser.parse_args()
    with asked.trace.open(encoding="utf-8") as lines:
        print("".join(sample(lines, until_s=asked.until_s, each=asked.each)), end="")


if __name__ == "__main__":
    main()
