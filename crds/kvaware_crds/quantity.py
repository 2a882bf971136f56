"""Kubernetes quantities (``40Gi``, ``1500m``, ``1e3``) as whole units, and back.

kvaware counts bytes, so every quantity becomes an integer; what lies between two units is rounded away from zero, as
Kubernetes' own ``Quantity.Value()`` does. All arithmetic is on integers: no figure passes through a float.
Source: the grammar in ``k8s.io/apimachinery/pkg/api/resource``.
"""

import re
from typing import Any, Final

from kvaware_crds.errors import WireError

__all__ = ["MAX_QUANTITY", "QUANTITY_PATTERN", "format_quantity", "parse_count", "parse_quantity"]

MAX_QUANTITY: Final = 2**63 - 1
"""Kubernetes holds a quantity in 64 bits and silently caps what is larger; here it is an error."""

MAX_TEXT_LENGTH: Final = 64
"""Characters. The longest sensible spelling of a 64-bit figure has about 40."""

QUANTITY_PATTERN: Final = (
    r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)"  # one digit at least, on either side of the point
    r"([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"  # a lone E is exa, with digits it is an exponent
)
"""Written so that Go's, Rust's and Python's engines read it alike; also the CRDs' ``pattern``."""

_SPELLING: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<fraction>[0-9]*))?|\.(?P<bare>[0-9]+))"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_POWER_OF_TEN: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWER_OF_TWO: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_EXPECTED: Final = "expected a Kubernetes quantity such as 40Gi, 500M, 1e9 or 1024"


def parse_quantity(value: Any) -> int:
    """Read a quantity in any legal Kubernetes spelling.

    Args:
        value: The text of a quantity, or an integer of whole units.
    Returns: Whole units, rounded away from zero; may be negative where the text is.
    Raises: WireError when it is no quantity, or larger than 2^63-1 in either direction.
    """
    units, _ = _read(value)
    return units


def parse_count(value: Any) -> int:
    """Read a quantity of what cannot be divided, such as GPUs: ``2``, ``2.0``, ``2000m`` and ``0.002k`` are all 2.

    Args:
        value: As for ``parse_quantity``.
    Returns: Whole units; may be negative where the text is.
    Raises: WireError when it is no quantity, too large, or not a whole number.
    """
    units, exact = _read(value)
    if not exact:
        raise WireError(f"expected a whole number, got {str(value)[:MAX_TEXT_LENGTH]!r}")
    return units


def _read(value: Any) -> tuple[int, bool]:
    """Whole units, rounded away from zero, and whether nothing was rounded."""
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value, shown=str(value) if abs(value) <= MAX_QUANTITY else "a longer integer"), True
    if not isinstance(value, str):
        raise WireError(f"{_EXPECTED}, got {type(value).__name__}")
    shown = repr(value[:MAX_TEXT_LENGTH])
    spelling = _SPELLING.fullmatch(value) if len(value) <= MAX_TEXT_LENGTH else None
    if spelling is None:
        raise WireError(f"{_EXPECTED}, got {shown}")
    fraction = spelling["fraction"] or spelling["bare"] or ""
    digits = int((spelling["whole"] or "") + fraction)
    power_of_ten = _POWER_OF_TEN.get(spelling["decimal"] or "", int(spelling["exponent"] or 0)) - len(fraction)
    power_of_two = _POWER_OF_TWO.get(spelling["binary"] or "", 0)
    # Digits are at most 64, so beyond these powers the answer is known, and 10**999999999 is never computed.
    if digits and power_of_ten > MAX_TEXT_LENGTH:
        raise WireError(f"{_EXPECTED} of at most {MAX_QUANTITY}, got {shown}")
    rest = 0
    if power_of_ten < -2 * MAX_TEXT_LENGTH:
        magnitude = rest = 1 if digits else 0
    elif power_of_ten < 0:
        magnitude, rest = divmod(digits << power_of_two, 10**-power_of_ten)
        magnitude += rest > 0
    else:
        magnitude = (digits << power_of_two) * 10 ** (power_of_ten if digits else 0)
    return _bounded(-magnitude if spelling["sign"] == "-" else magnitude, shown=shown), rest == 0


def format_quantity(units: int) -> str:
    """Write whole units as the shortest exact quantity: ``42949672960`` becomes ``40Gi``, ``1000`` stays ``1000``."""
    for suffix, power in reversed(_POWER_OF_TWO.items()):
        if units and units % (1 << power) == 0:
            return f"{units >> power}{suffix}"
    return str(units)


def _bounded(units: int, *, shown: str) -> int:
    if abs(units) > MAX_QUANTITY:
        raise WireError(f"{_EXPECTED} of at most {MAX_QUANTITY}, got {shown}")
    return units
