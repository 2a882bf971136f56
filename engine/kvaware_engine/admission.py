"""Who is admitted where, as things are booked now: the rules of ``verdict`` asked with the books, for one node or all.

Quota comes from the tenants, what is free from the fleet, and what the pod itself holds already from the ledger.
"""

import numpy as np
import numpy.typing as npt

from kvaware_engine.decisions import PodDemand
from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.ledger import Ledger
from kvaware_engine.observations import GpuClass
from kvaware_engine.reasons import CODE_OF_REASON, REASON_OF_CODE, Reason
from kvaware_engine.tenants import Headroom, Tenants
from kvaware_engine.verdict import ADMITTED, node_codes, node_refusal, pod_refusal

__all__ = ["Admission"]


class Admission:
    """Filter's and bind's question. It changes nothing.

    Args:
        fleet: The nodes.
        ledger: Who holds what on them.
        tenants: Who may have how much.
        whole_gpu_free_ratio: Share of a GPU that must be free for a pod that wants it whole, 0..1.
    """

    def __init__(self, *, fleet: Fleet, ledger: Ledger, tenants: Tenants, whole_gpu_free_ratio: float) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._tenants = tenants
        self._whole_gpu_free_ratio = whole_gpu_free_ratio

    def headroom(self, demand: PodDemand, *, intents: bool) -> Headroom | None:
        """What the demand's tenant may still take, without what this very pod holds already."""
        return self._tenants.headroom(
            demand.namespace,
            intents=intents,
            less=self._ledger.own_amounts(demand.uid),
            free=self._free_by_owner(intents=intents),
        )

    def pod_refusal(self, demand: PodDemand, headroom: Headroom | None) -> Reason | None:
        """The reason that holds on every node; a pod that holds something already passed it."""
        return None if self._ledger.own_nodes(demand.uid) else pod_refusal(demand, headroom)

    def codes(self, demand: PodDemand, headroom: Headroom | None) -> npt.NDArray[np.int8]:
        """The verdict on every row of the fleet, intents counted, for a pod that is not refused everywhere.

        A pod whose binding is in doubt, or not seen yet, can go nowhere else.
        """
        own = self._ledger.own_nodes(demand.uid)
        if own:
            codes = np.full(self._fleet.size, CODE_OF_REASON[Reason.BINDING_UNDECIDED], dtype=np.int8)
            codes[[row.index for name in own if (row := self._fleet.get(name)) is not None]] = ADMITTED
            codes[~self._fleet.known] = CODE_OF_REASON[Reason.NODE_UNKNOWN]
            return codes
        return node_codes(
            self._fleet.columns(demand.resource),
            demand,
            headroom=headroom,
            tenant_code=self._tenant_code(demand),
            whole_gpu_free_ratio=self._whole_gpu_free_ratio,
        )

    def verdict(self, row: NodeRow, demand: PodDemand) -> Reason | None:
        """Filter's question about one node, intents counted."""
        headroom = self.headroom(demand, intents=True)
        refusal = pod_refusal(demand, headroom)
        if refusal is not None:
            return refusal
        codes = node_codes(
            self._fleet.columns(demand.resource).take(np.array([row.index])),
            demand,
            headroom=headroom,
            tenant_code=self._tenant_code(demand),
            whole_gpu_free_ratio=self._whole_gpu_free_ratio,
        )
        return REASON_OF_CODE[int(codes[0])]

    def bind_refusal(self, demand: PodDemand, node: str) -> Reason | None:
        """Bind's question: GPU count, HBM and quota on one node, intents not counted."""
        self._ledger.flush()
        headroom = self.headroom(demand, intents=False)
        refusal = pod_refusal(demand, headroom)
        if refusal is not None:
            return refusal
        row = self._fleet.get(node)
        if row is None or row.node is None:
            return Reason.NODE_UNKNOWN
        return node_refusal(
            self._fleet.columns_of(row, demand.resource, but_not_uid=demand.uid),
            demand,
            headroom=headroom,
            tenant_code=self._tenant_code(demand),
            whole_gpu_free_ratio=self._whole_gpu_free_ratio,
        )

    def _tenant_code(self, demand: PodDemand) -> int:
        return self._fleet.tenant_code(self._tenants.named(demand.namespace))

    def _free_by_owner(self, *, intents: bool) -> dict[str | None, tuple[int, int]] | None:
        """Free GPUs and HBM bytes by the tenant that nodes are reserved for; None when nobody was promised any."""
        if not self._tenants.guarantees():
            return None
        gpus, hbm = self._fleet.spare()
        if not intents:
            for node in self._ledger.intended_nodes():
                row = self._fleet.get(node)
                if row is not None and row.node is not None and row.node.ready and not row.node.unschedulable:
                    summaries = [(pool, self._fleet.summary(row, pool, intents=False)) for pool in row.node.pools]
                    whole = [summary for pool, summary in summaries if pool.gpu_class is not GpuClass.PARTITION]
                    gpus[row.index] = sum(summary.free for summary in whole)
                    hbm[row.index] = sum(summary.free_bytes for _, summary in summaries)
        names = {self._fleet.tenant_code(tenant): tenant for tenant in self._tenants.names()}
        free: dict[str | None, tuple[int, int]] = {}
        owned = self._fleet.owner
        for code in np.unique(owned).tolist():
            mask = owned == code
            free[names.get(code)] = (int(gpus[mask].sum()), int(hbm[mask].sum()))
        return free
