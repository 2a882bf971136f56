"""Bind's check-and-take: one node is judged and taken in one step, and what was taken is written down."""

from collections.abc import Mapping

from kvaware_engine.admission import Admission
from kvaware_engine.decisions import PodDemand, Refusal
from kvaware_engine.fleet import Fleet
from kvaware_engine.group_places import GroupPlaces
from kvaware_engine.ledger import Ledger
from kvaware_engine.observations import GpuClass, PodObservation, Reservation
from kvaware_engine.reasons import REFUSAL_TEXTS, Reason
from kvaware_engine.what_if import Version

__all__ = ["Reservations"]


class Reservations:
    """Makes reservations. One owner; every method is synchronous.

    Args:
        admission: Bind's question about one pod.
        group_places: The same about a pod of a group.
        fleet: The nodes.
        ledger: Keeps what is taken.
        pods: All pods by UID, as the API server shows them.
        version: Names a decision that nobody made before.
    """

    def __init__(
        self,
        *,
        admission: Admission,
        group_places: GroupPlaces,
        fleet: Fleet,
        ledger: Ledger,
        pods: Mapping[str, PodObservation],
        version: Version,
    ) -> None:
        self._admission = admission
        self._group_places = group_places
        self._fleet = fleet
        self._ledger = ledger
        self._pods = pods
        self._version = version

    def reserve(self, demand: PodDemand, node: str, *, now_s: float, decision_id: str) -> Reservation | Refusal:
        """Take the node for the pod, or say why not. Intents are guesses and do not count."""
        standing = self._ledger.standing(demand.uid, node)
        if standing is not None:
            return standing
        pod = self._pods.get(demand.uid)
        if pod is not None and pod.node is not None:
            if pod.node != node:
                return _refusal(Reason.ALREADY_BOUND)
            return pod.reservation or self._reservation(demand, node, (), decision_id)
        self._ledger.end_intent(demand.uid)
        if demand.group is None:
            reason = self._admission.bind_refusal(demand, node)
        else:
            reason = self._group_places.bind_refusal(demand.group, demand, node, now_s=now_s)
        if reason is not None:
            return _refusal(reason)
        reservation = self._reservation(demand, node, self._ledger.assume(demand, node), decision_id)
        self._ledger.reserved(demand.uid, node, reservation, now_s=now_s)
        return reservation

    def _reservation(self, demand: PodDemand, node: str, devices: tuple[int, ...], decision_id: str) -> Reservation:
        pool = self._fleet.row(node).pool(demand.resource) if demand.resource is not None else None
        own = f"{demand.uid}-"
        return Reservation(
            model=demand.model.name if demand.model is not None else None,
            tenant=demand.tenant,
            resource=demand.resource or "",
            gpus=demand.gpus,
            hbm_per_gpu_bytes=demand.hbm_per_gpu_bytes,
            gpu_class=pool.gpu_class if pool is not None else GpuClass.EXCLUSIVE,
            devices=devices,
            decision_id=decision_id if decision_id.startswith(own) else f"{own}{self._version.now()}",
        )


def _refusal(reason: Reason) -> Refusal:
    return Refusal(reason=reason, text=REFUSAL_TEXTS[reason])
