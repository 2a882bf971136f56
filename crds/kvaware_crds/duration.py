"""Kubernetes durations (``1h30m``, ``500ms``): the spelling of Go's ``time.ParseDuration``, and back.

Microseconds are the finest step kept; what is finer is rounded away from zero, so that a positive wait never becomes
none. (Kubernetes' ``format: duration`` also lets through ``1 day``; the CRDs' pattern does not.)
"""

import re
from datetime import timedelta
from typing import Any, Final

from kvaware_crds.errors import WireError

__all__ = ["DURATION_PATTERN", "format_duration", "parse_duration"]

DURATION_PATTERN: Final = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"  # Go knows two kinds of mu
"""Non-negative spellings, as the CRDs' ``pattern``: no field of ours can be negative."""

MAX_TEXT_LENGTH: Final = 64
"""Characters; Go itself never writes more than 28."""

_MAX_NANOSECONDS: Final = 2**63 - 1  # Go's time.Duration, about 292 years
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5, the micro sign
    "μs": 1_000,  # U+03BC, the Greek letter, which Go reads as well
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_SPELLING: Final = re.compile(r"(?P<sign>[+-]?)(?P<rest>.+)", re.DOTALL)
_PART: Final = re.compile(r"(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(ns|us|µs|μs|ms|s|m|h)")
_EXPECTED: Final = "expected a duration such as 1h30m, 45s or 500ms"


def parse_duration(value: Any) -> timedelta:
    """Read a duration as Kubernetes does.

    Returns: The duration; negative where the text has a minus sign.
    Raises: WireError when it is no duration, or longer than the 292 years that Go can hold.
    """
    if not isinstance(value, str):
        raise WireError(f"{_EXPECTED}, got {type(value).__name__}")
    shown = repr(value[:MAX_TEXT_LENGTH])
    spelling = _SPELLING.fullmatch(value) if len(value) <= MAX_TEXT_LENGTH else None
    if spelling is None:
        raise WireError(f"{_EXPECTED}, got {shown}")
    sign, rest = spelling["sign"], spelling["rest"]
    if rest == "0":  # the one figure that needs no unit
        return timedelta()
    nanoseconds, at = 0, 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None:
            raise WireError(f"{_EXPECTED}, got {shown}")
        whole, fraction, bare, unit = part.groups()
        decimals = fraction or bare or ""
        nanoseconds += int((whole or "") + decimals) * _NANOSECONDS[unit] // 10 ** len(decimals)
        at = part.end()
    if nanoseconds > _MAX_NANOSECONDS:
        raise WireError(f"{_EXPECTED} of at most 292 years, got {shown}")
    duration = timedelta(microseconds=-(-nanoseconds // 1_000))
    return -duration if sign == "-" else duration


def format_duration(duration: timedelta) -> str:
    """Write a duration with the largest units that fit: ``1h30m``, ``500ms``, ``0s``."""
    microseconds = duration // timedelta(microseconds=1)
    sign, left, parts = "-" if microseconds < 0 else "", abs(microseconds), []
    for unit in ("h", "m", "s", "ms", "us"):
        count, left = divmod(left, _NANOSECONDS[unit] // 1_000)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts) if parts else "0s"
