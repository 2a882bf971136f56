"""Figures stay whole at every width; sums that are shown add up."""

import io

import pytest

from kvaware_cli.client import SCHEDULER_NAME
from kvaware_cli.output import console, kept_whole, leading_terms, ms, print_table, seconds, shortened, table
from kvaware_engine import EngineSettings

NAME = "gke-inference-cluster-gpu-pool-h100-8x-us-central1-a-3f2b1c9d-" + "n" * 8 + "-xk7p"
TERMS = ", ".join(map(kept_whole, ("memory_pressure 123,456", "cache_access 35,679", "other 253")))


def printed(name: str, *, width: int) -> list[str]:
    made = table(
        "", "NODE", "COST MS", "MADE OF",
        right=frozenset({"COST MS"}), wrap=frozenset({"MADE OF"}), names=frozenset({"NODE"}),
    )  # fmt: skip
    made.add_row("→", name, "159,388", TERMS)
    out = console(plain=True, file=(text := io.StringIO()))
    out.width = width
    print_table(out, made)
    return text.getvalue().splitlines()


@pytest.mark.parametrize("name", ["a", NAME, "n" * 300])
@pytest.mark.parametrize("width", [30, 60, 80, 100, 200, 1000])
def test_no_width_and_no_name_cuts_a_figure(name: str, width: int) -> None:
    """75 characters are usual on GKE. Lists go on in the next line, between their terms."""
    lines = printed(name, width=width)
    assert " 159,388  " in lines[1]
    for term in ("memory_pressure 123,456", "cache_access 35,679", "other 253"):
        assert [line for line in lines if term in line]
    assert width < 60 or max(map(len, lines)) <= width


def test_a_name_keeps_its_beginning_and_its_end() -> None:
    """The pool's name and the machine's own letters are what tells nodes apart."""
    [row] = [line for line in printed(NAME, width=80) if "→" in line]
    name = row.split()[1]
    assert NAME.startswith(name.partition("…")[0])
    assert NAME.endswith(name.partition("…")[2])
    assert len(name) >= 16


def test_names_that_would_look_alike_stay_whole() -> None:
    names = ["pool-aaaaaaaaaa-1-zzzzzzzz", "pool-aaaaaaaaaa-2-zzzzzzzz", "short", "other-bbbbbbbbbbbb-yyyyyyyy"]
    assert shortened(names, 16) == [*names[:3], "other-bb…yyyyyyy"]


@pytest.mark.parametrize(("cost_ms", "told"), [(1750, "1.8"), (1650, "1.7"), (1649, "1.6"), (1_234_560, "1,234.6")])
def test_seconds_are_rounded_as_people_round(cost_ms: float, told: str) -> None:
    assert seconds(cost_ms) == told


@pytest.mark.parametrize(
    ("cost_ms", "told"), [(0, "0"), (12.5, "13"), (13.5, "14"), (-12.5, "-13"), (0.25, "0.3"), (38931.5, "38,932")]
)
def test_milliseconds_too(cost_ms: float, told: str) -> None:
    assert ms(cost_ms) == told


def test_what_is_left_is_told_from_a_millisecond_on() -> None:
    terms = {"network": 100.0, "risk": 50.0, "migration": -20.0}
    assert leading_terms(terms, total=130, count=2) == "network 100, risk 50, other -20"
    assert leading_terms(terms, total=130, count=2, sign="+") == "network +100, risk +50, other -20"
    assert leading_terms(terms | {"migration": 0.9}, total=151, count=2) == "network 100, risk 50"


def test_the_schedulers_name_is_the_engines() -> None:
    assert EngineSettings().scheduler_name == SCHEDULER_NAME
