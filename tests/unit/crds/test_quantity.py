"""Quantities: every legal Kubernetes spelling, rounded as Kubernetes rounds, and nothing else."""

from decimal import ROUND_UP, Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvaware_crds import MAX_QUANTITY, WireError, format_quantity, parse_count, parse_quantity

GI = 2**30


@pytest.mark.parametrize(
    ("written", "units"),
    [
        pytest.param("40Gi", 40 * GI, id="binary"),
        pytest.param("1Ki", 1024, id="kibi"),
        pytest.param("1Mi", 1024**2, id="mebi"),
        pytest.param("1Ti", 1024**4, id="tebi"),
        pytest.param("1Pi", 1024**5, id="pebi"),
        pytest.param("1Ei", 1024**6, id="exbi"),
        pytest.param("1k", 1000, id="kilo, in lower case"),
        pytest.param("1M", 10**6, id="mega"),
        pytest.param("1G", 10**9, id="giga"),
        pytest.param("1T", 10**12, id="tera"),
        pytest.param("1P", 10**15, id="peta"),
        pytest.param("1E", 10**18, id="a lone E is exa"),
        pytest.param("1E3", 1000, id="E with digits is an exponent"),
        pytest.param("1e3", 1000, id="exponent"),
        pytest.param("1e+3", 1000, id="exponent with plus"),
        pytest.param("1500e-3", 2, id="negative exponent rounds up"),
        pytest.param("1e-999", 1, id="next to nothing rounds up"),
        pytest.param("0e999", 0, id="nothing, however often"),
        pytest.param("0.000000000000000000000000000001e48", 10**18, id="long fraction, large exponent"),
        pytest.param("2.5Gi", 5 * GI // 2, id="fraction"),
        pytest.param("0.3Ki", 308, id="307.2 rounds up"),
        pytest.param(".5", 1, id="no digit before the point"),
        pytest.param("5.", 5, id="no digit after the point"),
        pytest.param("1000m", 1, id="milli, whole"),
        pytest.param("1001m", 2, id="milli, rounded up"),
        pytest.param("1u", 1, id="micro"),
        pytest.param("1n", 1, id="nano"),
        pytest.param("+7", 7, id="plus"),
        pytest.param("-1500m", -2, id="away from zero below zero, too"),
        pytest.param("-0", 0, id="minus nothing"),
        pytest.param("007", 7, id="leading zeros"),
        pytest.param("0", 0, id="nothing"),
        pytest.param(42, 42, id="integer"),
        pytest.param(-1, -1, id="negative integer"),
        pytest.param(str(MAX_QUANTITY), MAX_QUANTITY, id="the largest"),
        pytest.param(MAX_QUANTITY, MAX_QUANTITY, id="the largest integer"),
    ],
)
def test_legal_spellings_become_whole_units(written: str | int, units: int) -> None:
    assert parse_quantity(written) == units


@pytest.mark.parametrize("written", [3, "3", "3.0", "3000m", "0.003k", "3e0", "30e-1", "3000000000n", "3.", "+3"])
def test_every_spelling_of_a_whole_number_is_a_count(written: str | int) -> None:
    assert parse_count(written) == 3


@pytest.mark.parametrize("written", ["2500m", "2.5", "1n", "1e-999", "-0.5", "0.0025k", "2.0000001"])
def test_what_lies_between_two_whole_numbers_is_no_count(written: str) -> None:
    with pytest.raises(WireError, match=f"whole number, got '{written}'"):
        parse_count(written)


NOT_TEXT: list[object] = [None, True, False, 1.0, 1.5, b"1", [], {}, Decimal(1)]
EMPTY_OR_SIGNS = ["", " ", ".", "+", "-", "--1", "+-1", "ten", "inf", "NaN"]
SUFFIXES_NOBODY_KNOWS = ["Gi", "1GiB", "1gi", "1K", "1mi", "1g", "1KI", "1Gi1", "e3", "1e", "1e+", "1e1.5"]
FIGURES_NOBODY_KNOWS = ["1 Gi", " 1", "1\n", "1,5", "1_000", "0x10", "1.2.3", "\u0663", "1\u00b2", "1" * 65]


@pytest.mark.parametrize("written", NOT_TEXT + EMPTY_OR_SIGNS + SUFFIXES_NOBODY_KNOWS + FIGURES_NOBODY_KNOWS, ids=repr)
def test_anything_else_is_refused_and_says_what_came(written: object) -> None:
    """A quantity is what people write by hand, so the message must let them find their mistake."""
    # when
    with pytest.raises(WireError) as refused:
        parse_quantity(written)
    # then
    message = str(refused.value)
    assert "expected a Kubernetes quantity" in message
    assert (repr(written[:64]) if isinstance(written, str) else type(written).__name__) in message


@pytest.mark.parametrize(
    "written",
    ["8Ei", "9223372036854775808", "1e19", "10E", "-8Ei", "1e999999999", "9" * 60 + "Ei", 2**63, -(2**63), 10**5000],
    ids=lambda written: str(type(written).__name__) if isinstance(written, int) else written[:16],
)
def test_what_64_bits_cannot_hold_is_refused(written: str | int) -> None:
    """Kubernetes caps such a figure silently: a pod would ask for less than its author wrote."""
    with pytest.raises(WireError, match="at most 9223372036854775807"):
        parse_quantity(written)


@given(st.integers(-MAX_QUANTITY, MAX_QUANTITY))
@example(0)
@example(MAX_QUANTITY)
def test_what_is_written_is_read_back(units: int) -> None:
    assert parse_quantity(format_quantity(units)) == units


@pytest.mark.parametrize(
    ("units", "written"),
    [
        (0, "0"),
        (1, "1"),
        (1000, "1000"),
        (1024, "1Ki"),
        (40 * GI, "40Gi"),
        (1536, "1536"),
        (-GI, "-1Gi"),
        (2**60, "1Ei"),
    ],
)
def test_the_largest_exact_binary_unit_is_written(units: int, written: str) -> None:
    assert format_quantity(units) == written


SUFFIXES: dict[str, Decimal | int] = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "e3": 10**3,
    "E-2": Decimal("1e-2"),
    "e+2": 100,
}


@given(
    sign=st.sampled_from(["", "+", "-"]),
    whole=st.integers(0, 10**6).map(str),
    fraction=st.one_of(st.just(""), st.integers(0, 10**6).map(lambda digits: f".{digits:06}")),
    suffix=st.sampled_from(sorted(SUFFIXES)),
)
def test_value_equals_decimal_arithmetic_rounded_away_from_zero(
    sign: str, whole: str, fraction: str, suffix: str
) -> None:
    """The oracle is the standard library's decimal."""
    exact = Decimal(f"{sign}{whole}{fraction}") * SUFFIXES[suffix]
    assert parse_quantity(f"{sign}{whole}{fraction}{suffix}") == int(exact.to_integral_value(ROUND_UP))


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_by_our_own_error(written: str) -> None:
    try:
        size = abs(parse_quantity(written))
    except WireError:
        return
    assert size <= MAX_QUANTITY
