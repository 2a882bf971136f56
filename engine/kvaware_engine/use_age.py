"""How old the exporter's figures of each node are, and what that costs: HBM that is kept back, and confidence.

Age is priced in whole minutes, so that the state changes rarely.
"""

from typing import Final

from kvaware_engine.fleet import NodeRow
from kvaware_engine.observations import NodeUse
from kvaware_engine.settings import EngineSettings

__all__ = ["UseAges"]

_STEP_S: Final = 60


class UseAges:
    """The age that every node's figures were last priced at. One owner; every method is synchronous."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._steps: dict[str, int] = {}
        """Node to the whole minutes of age, of those that an exporter shows."""

    def too_old(self, row: NodeRow, *, now_s: float) -> bool:
        """Whether the node's figures say nothing about it any more."""
        return row.use is not None and _age_s(row.use, now_s) > self._settings.use_max_age_s

    def is_priced(self, row: NodeRow, *, now_s: float) -> bool:
        """Whether the price of the node's figures is that of their age now."""
        return row.use is not None and self._steps.get(row.name) == _steps(row.use, now_s)

    def price(self, row: NodeRow, *, now_s: float) -> None:
        """Take over the age of the node's figures, or that there are none."""
        if row.use is None:
            self.forget(row.name)
        else:
            self._steps[row.name] = _steps(row.use, now_s)

    def forget(self, node: str) -> None:
        """There are no figures."""
        self._steps.pop(node, None)

    def margins(self, row: NodeRow) -> tuple[float, float]:
        """Ratios of HBM kept back: where the exporter shows a device, and where only the label tells its size."""
        hbm = self._settings.hbm
        if row.use is None:
            return 0.0, min(1.0, hbm.label_margin_ratio + hbm.unknown_foreign_use_margin_ratio)
        minutes = self._steps.get(row.name, 0)
        age = min(hbm.age_margin_max_ratio, hbm.age_margin_ratio_per_minute * minutes)
        return age, min(1.0, age + hbm.label_margin_ratio + hbm.unknown_foreign_use_margin_ratio)

    def confidence_ratio(self, row: NodeRow) -> float:
        """How far the node's row can be trusted, 0..1."""
        floor = self._settings.no_exporter_confidence_ratio
        if row.use is None:
            return floor
        fresh_share = 1 - self._steps.get(row.name, 0) * _STEP_S / max(_STEP_S, self._settings.use_max_age_s)
        return floor + (1 - floor) * max(0.0, fresh_share)


def _age_s(use: NodeUse, now_s: float) -> float:
    return max(0.0, now_s - use.observed_at_s)


def _steps(use: NodeUse, now_s: float) -> int:
    return int(_age_s(use, now_s) // _STEP_S)
