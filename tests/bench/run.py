"""Measure everything as ratios inside one run: absolute times differ from machine to machine, ratios hardly.

``python tests/bench/run.py [verbs|decisions|scheduler|operator|index|selection|http ...]``; without arguments, all.
"""

import sys
from pathlib import Path

from decisions import measure_decisions
from index import measure_index
from operator_at_size import measure_operator
from report import Row, print_rows, write_rows
from request_http import measure_request_http
from scheduler import measure_scheduler
from selection import measure_selection
from verbs import measure_verbs

PARTS = {
    "decisions": measure_decisions,
    "verbs": measure_verbs,
    "scheduler": measure_scheduler,
    "operator": measure_operator,
    "index": measure_index,
    "selection": measure_selection,
    "http": measure_request_http,
}


def main(chosen: list[str]) -> int:
    """Measure, print, write. Returns: 1 when a target was missed."""
    unknown = set(chosen) - set(PARTS)
    if unknown:
        print(f"expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for name in chosen or PARTS:
        rows += PARTS[name]()
        write_rows(rows, Path("build/bench.json"))  # after each part: what was measured is not lost with a later one
    print_rows(rows)
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
