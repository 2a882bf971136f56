"""Verdicts and costs of the nodes that are offered for a pod, as things are booked now.

kube-scheduler offers nodes by name; the columns of the whole fleet are judged, and the offered ones taken from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from kvaware_engine.admission import Admission
from kvaware_engine.costs import CostColumns, pod_costs
from kvaware_engine.decisions import FilterVerdict, PodDemand
from kvaware_engine.fleet import Fleet
from kvaware_engine.ledger import Hold, Ledger
from kvaware_engine.observations import ModelObservation, ObjectKey
from kvaware_engine.places import PlaceColumns, Places
from kvaware_engine.preemption import Preemption
from kvaware_engine.reasons import CODE_OF_REASON, REASON_OF_CODE, Reason, main_reason
from kvaware_engine.settings import EngineSettings
from kvaware_engine.verdict import ADMITTED

__all__ = ["Judge", "Judged", "only_there"]

IntArray = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

_NO_CODE_SAYS: Final = -1
"""For a reason of the pod's own, which no node's code can say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Offered nodes with their verdicts and costs."""

    demand: PodDemand
    nodes: Sequence[str]
    indexes: IntArray
    """Rows of the fleet, shape (nodes,)."""
    codes: npt.NDArray[np.int8]
    """Verdicts, shape (nodes,)."""
    everywhere: Reason | None
    """The pod-level refusal, which holds whatever ``codes`` says."""
    admitted: IntArray
    """Positions in ``nodes`` of those that can take the pod."""
    costs: CostColumns | None
    """Of the admitted, shape (admitted,); None when there are none."""
    places: PlaceColumns
    ranks: IntArray
    """Order of the rows' names, for ties, shape (rows,)."""

    def cheapest(self, count: int) -> list[int]:
        """Positions in ``admitted`` of the cheapest, ties by node name."""
        if self.costs is None:
            return []
        total = self.costs.total.copy()
        ranks = self.ranks[self.indexes[self.admitted]]
        order: list[int] = []
        while len(order) < min(count, len(total)):
            ties = np.flatnonzero(total == total.min())
            order.append(int(ties[ranks[ties].argmin()]))
            total[order[-1]] = np.inf
        return order

    def refusal(self, position: int) -> Reason | None:
        """Why one offered node cannot take the pod."""
        return self.everywhere if self.everywhere is not None else REASON_OF_CODE[int(self.codes[position])]

    def emptiest(self, free_gpus: IntArray, fit_bytes: IntArray) -> int:
        """Position in ``admitted`` of the node with the most HBM to give, then the most free GPUs, then by name.

        Args:
            free_gpus: Shape (admitted,).
            fit_bytes: Shape (admitted,).
        """
        best = np.flatnonzero(fit_bytes == fit_bytes.max())
        best = best[free_gpus[best] == free_gpus[best].max()]
        return int(best[self.ranks[self.indexes[self.admitted[best]]].argmin()])

    def main_refusal(self) -> Reason:
        """What to say of a pod that no node can take."""
        if self.everywhere is not None:
            return self.everywhere
        counts = np.bincount(self.codes, minlength=len(REASON_OF_CODE)).tolist()
        return main_reason({reason: counts[code] for code, reason in enumerate(REASON_OF_CODE) if reason is not None})


class Judge:
    """Asks filter's question, and prices what passes. It changes nothing.

    Args:
        admission: The rules.
        fleet: The nodes.
        ledger: The places that are kept for pods.
        preemption: Tells whether victims are leaving such a place.
        places: Where a model already is.
        models: All InferenceModels.
        settings: Bandwidths and prices.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        fleet: Fleet,
        ledger: Ledger,
        preemption: Preemption,
        places: Places,
        models: Mapping[ObjectKey, ModelObservation],
        settings: EngineSettings,
    ) -> None:
        self._admission = admission
        self._fleet = fleet
        self._ledger = ledger
        self._preemption = preemption
        self._places = places
        self._models = models
        self._settings = settings

    def filter(self, demand: PodDemand, nodes: Sequence[str]) -> FilterVerdict:
        """Which of the offered nodes can take the pod; its own hold must not be counted."""
        self._ledger.flush()
        headroom = self._admission.headroom(demand, intents=True)
        refusal = self._admission.pod_refusal(demand, headroom)
        hold = self._ledger.held(demand.uid)
        if refusal is not None and hold is None:
            return _refused_everywhere(refusal, nodes)
        indexes = self._fleet.indexes(nodes)
        if refusal is None:
            codes = self._admission.codes(demand, headroom)[indexes]
        else:
            codes = np.full(len(nodes), CODE_OF_REASON.get(refusal, _NO_CODE_SAYS), dtype=np.int8)
        if hold is not None and not self._mark_leaving(hold, indexes, codes) and refusal is not None:
            return _refused_everywhere(refusal, nodes)
        return FilterVerdict(nodes=nodes, codes=codes, reason=None, counts=_count(codes))

    def would_admit(self, demand: PodDemand, nodes: Sequence[str] | None) -> Reason | None:
        """Why none of the given (default: all) nodes can take the pod; None: one can. Its hold must not be counted."""
        self._ledger.flush()
        headroom = self._admission.headroom(demand, intents=True)
        refusal = self._admission.pod_refusal(demand, headroom)
        if refusal is not None:
            return refusal
        codes = self._admission.codes(demand, headroom)
        if nodes is None:
            self._without_cordoned(codes)
        codes = codes[self._fleet.indexes(nodes) if nodes is not None else self._fleet.known]
        if (codes == ADMITTED).any():
            return None
        return main_reason(_count(codes))

    def judge(self, demand: PodDemand, nodes: Sequence[str], *, cordoned: bool = True) -> Judged:
        """Verdicts and costs of the offered nodes; the pod's own hold and intent must not be counted.

        Args:
            demand: What the pod needs.
            nodes: As offered.
            cordoned: Whether a cordoned node can take it: yes where kube-scheduler offered it.
        """
        self._ledger.flush()
        headroom = self._admission.headroom(demand, intents=True)
        indexes = self._fleet.indexes(nodes)
        everywhere = self._admission.pod_refusal(demand, headroom)
        codes = self._admission.codes(demand, headroom)
        if not cordoned:
            self._without_cordoned(codes)
        codes = codes[indexes]
        hold = self._ledger.held(demand.uid)
        if hold is not None:
            self._mark_leaving(hold, indexes, codes)
        admitted = np.flatnonzero(codes == ADMITTED) if everywhere is None else np.zeros(0, dtype=np.int64)
        places = self._places.columns(demand.model)
        costs: CostColumns | None = None
        if len(admitted):
            model = self._models.get(demand.model) if demand.model is not None else None
            costs = pod_costs(
                indexes[admitted], demand, model, fleet=self._fleet, places=places, settings=self._settings
            )
        return Judged(
            demand=demand,
            nodes=nodes,
            indexes=indexes,
            codes=codes,
            everywhere=everywhere,
            admitted=admitted,
            costs=costs,
            places=places,
            ranks=self._fleet.ranks(),
        )

    def _without_cordoned(self, codes: Codes) -> None:
        """kube-scheduler does not offer cordoned nodes; where it is not asked, they must not look open."""
        codes[self._fleet.cordoned & (codes == ADMITTED)] = CODE_OF_REASON[Reason.NODE_CORDONED]

    def _mark_leaving(self, hold: Hold, indexes: IntArray, codes: Codes) -> bool:
        """Say of the nominated node that victims are leaving it, where that is all. Returns: whether it is."""
        row = self._fleet.get(hold.node)
        here = indexes == row.index if row is not None else np.zeros(len(indexes), dtype=np.bool_)
        if not (codes[here] != ADMITTED).any() or not self._preemption.opens(hold):
            return False
        codes[here] = CODE_OF_REASON[Reason.VICTIMS_LEAVING]
        return True


def only_there(verdict: FilterVerdict, place: int) -> FilterVerdict:
    """The verdict with this one of the admitted nodes alone."""
    if verdict.admits == 1:
        return verdict
    codes = np.where(verdict.codes == ADMITTED, CODE_OF_REASON[Reason.GROUP_ELSEWHERE], verdict.codes).astype(np.int8)
    codes[place] = ADMITTED
    return FilterVerdict(nodes=verdict.nodes, codes=codes, reason=None, counts=_count(codes))


def _refused_everywhere(reason: Reason, nodes: Sequence[str]) -> FilterVerdict:
    codes = np.full(len(nodes), _NO_CODE_SAYS, dtype=np.int8)
    return FilterVerdict(nodes=nodes, codes=codes, reason=reason, counts={reason: len(nodes)})


def _count(codes: Codes) -> dict[Reason, int]:
    counts = np.bincount(codes, minlength=len(REASON_OF_CODE)).tolist()
    return {reason: counts[code] for code, reason in enumerate(REASON_OF_CODE) if reason is not None and counts[code]}
