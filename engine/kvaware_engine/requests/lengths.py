"""How long an answer is expected to be where the client does not say: a quantile of what was answered lately.

Per model and tenant, of the last 128 answers: tenants ask different things, and what they ask changes. No policy ever
sees a true length.
"""

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Final

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.settings import RequestLedgerSettings

__all__ = ["OutputLengths"]

_ANSWERS: Final = 128
"""Remembered per key: the standard error of a median of 128 is some 11 % of a log-normal spread of 1."""
_ENOUGH: Final = 8
"""Fewer say less than what all tenants of the model ask."""
_KEYS_MAX: Final = 4096
"""Some 10 MB. Beyond it the keys without an answer for the longest time are forgotten."""


class _Window:
    """The last answers, in the order they came and by length: exact, and 1 µs per answer."""

    __slots__ = ("_came", "_sorted")

    def __init__(self) -> None:
        self._came: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, tokens: int) -> None:
        if len(self._came) == _ANSWERS:
            oldest = self._came.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._came.append(tokens)
        insort(self._sorted, tokens)

    def quantile(self, ratio: float) -> int:
        return self._sorted[round(ratio * (len(self._sorted) - 1))]


class OutputLengths:
    """Expected output tokens. Memory is bounded by 4,096 models and tenants of models."""

    def __init__(self, settings: RequestLedgerSettings) -> None:
        self._default = settings.expected_output_tokens
        self._ratio = settings.expected_output_ratio
        self._windows: OrderedDict[tuple[ObjectKey, str | None], _Window] = OrderedDict()
        """By model and tenant; None: all tenants of the model together. The longest unused first."""

    def __len__(self) -> int:
        return len(self._windows)

    def observe(self, model: ObjectKey, tenant: str, output_tokens: int) -> None:
        """A request finished with so many tokens, 0 or more."""
        for key in ((model, tenant), (model, None)):
            window = self._windows.get(key)
            if window is None:
                window = self._windows[key] = _Window()
                if len(self._windows) > _KEYS_MAX:
                    self._windows.popitem(last=False)
            else:
                self._windows.move_to_end(key)
            window.add(output_tokens)

    def expected(self, model: ObjectKey, tenant: str) -> int:
        """The settings' quantile of the tenant's answers, else of all answers of the model, else the settings' number.

        Returns: Tokens, 1 or more: a request that is placed answers something.
        """
        for key in ((model, tenant), (model, None)):
            window = self._windows.get(key)
            if window is not None and len(window) >= _ENOUGH:
                return max(1, window.quantile(self._ratio))
        return max(1, self._default)
