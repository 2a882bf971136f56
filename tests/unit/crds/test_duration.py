"""Durations: what Go reads, to the microsecond."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaware_crds import WireError, format_duration, parse_duration

LONGEST = timedelta(microseconds=(2**63 - 1) // 1000)


@pytest.mark.parametrize(
    ("written", "duration"),
    [
        pytest.param("1h30m", timedelta(hours=1.5), id="two units"),
        pytest.param("500ms", timedelta(milliseconds=500), id="milliseconds"),
        pytest.param("0s", timedelta(), id="nothing"),
        pytest.param("0", timedelta(), id="nothing needs no unit"),
        pytest.param("1.5s", timedelta(seconds=1.5), id="fraction"),
        pytest.param(".5h", timedelta(minutes=30), id="no digit before the point"),
        pytest.param("2.m", timedelta(minutes=2), id="no digit after the point"),
        pytest.param("7us", timedelta(microseconds=7), id="us"),
        pytest.param("7\u00b5s", timedelta(microseconds=7), id="micro sign"),
        pytest.param("7\u03bcs", timedelta(microseconds=7), id="Greek mu"),
        pytest.param("1ns", timedelta(microseconds=1), id="nanoseconds round up to a microsecond"),
        pytest.param("1s1s", timedelta(seconds=2), id="units may come twice, as in Go"),
        pytest.param("5m1h", timedelta(minutes=65), id="in any order"),
        pytest.param("-1.5h", -timedelta(minutes=90), id="minus"),
        pytest.param("+3s", timedelta(seconds=3), id="plus"),
        pytest.param("2562047h47m16.854775807s", LONGEST + timedelta(microseconds=1), id="the longest that Go holds"),
    ],
)
def test_go_spellings_are_read(written: str, duration: timedelta) -> None:
    assert parse_duration(written) == duration


NOT_TEXT: list[object] = [None, 5, 1.5, True, [], timedelta(seconds=1)]
MALFORMED = ["", "5", "s", ".", ".s", "-", "--1s", "1s-1m", "1 s", "1s\n", "1,5s", "\u0663s", "1h" * 40]
UNITS_GO_LACKS = ["1d", "1w", "1 day", "1S", "1H", "PT5M"]


@pytest.mark.parametrize("written", NOT_TEXT + MALFORMED + UNITS_GO_LACKS, ids=repr)
def test_anything_else_is_refused_and_says_what_came(written: object) -> None:
    # when
    with pytest.raises(WireError) as refused:
        parse_duration(written)
    # then
    message = str(refused.value)
    assert "expected a duration such as 1h30m" in message
    assert (repr(written[:64]) if isinstance(written, str) else type(written).__name__) in message


@pytest.mark.parametrize("written", ["2562047h47m16.854775808s", "9999999h", "9" * 60 + "h"])
def test_what_go_cannot_hold_is_refused(written: str) -> None:
    with pytest.raises(WireError, match="at most 292 years"):
        parse_duration(written)


@given(st.timedeltas(min_value=-LONGEST, max_value=LONGEST))
def test_what_is_written_is_read_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "written"),
    [
        (timedelta(), "0s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(milliseconds=1500), "1s500ms"),
        (timedelta(days=7), "168h"),
        (-timedelta(microseconds=3), "-3us"),
    ],
)
def test_the_largest_units_are_written(duration: timedelta, written: str) -> None:
    assert format_duration(duration) == written


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_by_our_own_error(written: str) -> None:
    try:
        size = abs(parse_duration(written))
    except WireError:
        return
    assert size <= LONGEST + timedelta(microseconds=1)
