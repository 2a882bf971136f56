"""Victims: who may be added to those that kube-scheduler found, the fewest that help, and what is free without them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from kvaware_engine.fleet import Fleet, NodeRow
from kvaware_engine.observations import GpuClass, GpuUse, NodeUse, PodObservation
from kvaware_engine.pools import Booking, BookingKind, DeviceState, uses_by_device
from kvaware_engine.reasons import Reason

__all__ = ["MOST_TRIALS", "Budget", "Killable", "killable", "more_victims", "use_without"]

MOST_TRIALS: Final = 400
"""Sets of victims that are tried for one pod, over all offered nodes: each takes some 0.2 ms of everybody's time."""
MOST_EXACT: Final = 2
"""Up to so many added victims the fewest and cheapest are found; more are found by giving back what is not needed."""

Refusal = Callable[[frozenset[str]], Reason | None]
"""Why the pod would be refused on one node once these pods are gone from it."""

Fits = Callable[[Collection["Killable"]], bool]
"""Whether it would not, with these on top of the offered victims."""


@dataclass(slots=True)
class Budget:
    """How many sets of victims may still be tried for this pod."""

    left: int = MOST_TRIALS

    def take(self) -> bool:
        """Take one, if there is one."""
        self.left -= 1
        return self.left >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killable:
    """A pod of lower priority that could be added to the victims."""

    uid: str
    priority: int
    hbm_bytes: int
    leaving: bool
    """It terminates already: to wait for it kills nobody."""


def killable(
    row: NodeRow, resource: str, *, below: int, pods: Mapping[str, PodObservation], but_not: Iterable[str]
) -> list[Killable]:
    """The pods on a node that may be added to the victims of a pod, the cheapest first.

    Only pods that the API server shows bound: kube-scheduler takes the whole answer for an error when it does not know
    a victim. Never a pod of equal or higher priority, and none of a group: the rest of the group would be left behind.

    Args:
        row: The node.
        resource: The GPU resource that is short.
        below: The priority of the pod that needs room.
        pods: All pods by UID.
        but_not: UIDs that are victims already.
    """
    named = set(but_not)
    found = []
    for uid, bookings in row.bookings.items():
        pod = pods.get(uid)
        if uid in named or pod is None or pod.group is not None or pod.priority >= below:
            continue
        held = [b for b in bookings if b.resource == resource and b.kind is BookingKind.OBSERVED]
        if held:
            hbm = sum((booking.hbm_per_gpu_bytes or 0) * booking.gpus for booking in held)
            found.append(Killable(uid=uid, priority=pod.priority, hbm_bytes=hbm, leaving=pod.terminating))
    return sorted(found, key=lambda k: (not k.leaving, k.priority, k.hbm_bytes, k.uid))


def more_victims(
    offered: frozenset[str], candidates: Sequence[Killable], refusal: Refusal, budget: Budget
) -> list[Killable] | None:
    """Who must go on top of the offered victims so that the pod has room: the fewest, of those the cheapest.

    Pods that terminate anyway come before all others. Dearer means a higher priority, then a higher sum of priorities,
    then more HBM.

    Args:
        offered: UIDs of kube-scheduler's victims; without more of them the pod is refused.
        candidates: Who may be added, see ``killable``.
        refusal: Asked for sets that hold ``offered``.
        budget: Shared by the nodes that were offered for one pod.
    Returns: None where nothing helps, or nothing was found within the budget.
    """

    def fits(added: Collection[Killable]) -> bool:
        gone = offered | {k.uid for k in added}
        return bool(gone) and budget.take() and refusal(gone) is None

    if not candidates or not fits(candidates):
        return None
    leaving = [k for k in candidates if k.leaving]
    staying = [k for k in candidates if not k.leaving]
    chosen: list[Killable] | None = list(leaving) if leaving and fits(leaving) else None
    for size in range(1, MOST_EXACT + 1):
        if chosen is None:
            chosen = _cheapest_of_size(size, leaving, staying, fits)
    if chosen is not None and not leaving:
        return chosen  # fewer were tried before
    dearest_first = sorted(staying, key=lambda k: (-k.priority, -k.hbm_bytes, k.uid))
    return _needed(chosen or candidates, [*dearest_first, *leaving], fits)


def _needed(chosen: Sequence[Killable], give_back: Sequence[Killable], fits: Fits) -> list[Killable]:
    """Who of a set that makes room is needed for it, given back in this order.

    Again and again while it helps: with fewer gone there can be more room, since a replica that gets free on a crowded
    GPU is one that the pod might be given.
    """
    needed = list(chosen)
    before = 0
    while len(needed) != before:
        before = len(needed)
        for one in give_back:
            rest = [k for k in needed if k is not one]
            if len(rest) < len(needed) and fits(rest):
                needed = rest
    return needed


def _cheapest_of_size(size: int, leaving: list[Killable], staying: list[Killable], fits: Fits) -> list[Killable] | None:
    """The cheapest set of so many pods that makes room together with those that leave anyway."""
    sets = sorted(
        combinations(staying, size),
        key=lambda s: (max(k.priority for k in s), sum(k.priority for k in s), sum(k.hbm_bytes for k in s)),
    )
    for each in sets:
        if fits([*leaving, *each]):
            return [*leaving, *each]
    return None


def use_without(fleet: Fleet, row: NodeRow, gone: Mapping[str, tuple[Booking, ...]]) -> NodeUse | None:
    """The exporter's figures as they would be without some pods: what their reservations explain is free again.

    What a pod uses beyond its reservation stays counted as somebody else's: room that is not certain kills nobody.

    Args:
        fleet: Of the row.
        row: With the pods still on it.
        gone: UID to what those pods hold there.
    """
    if row.use is None or row.node is None or not gone:
        return row.use
    changed: dict[int, GpuUse] = {}
    for pool in row.node.pools:
        mine = [b for bookings in gone.values() for b in bookings if b.resource == pool.resource and b.ready]
        if not mine:
            continue
        states = fleet.devices(row, pool, intents=True)
        for state, use in zip(states, uses_by_device(pool, row.use.gpus), strict=True):
            if use is not None:
                freed = sum(_explained(b, state, pool.gpu_class) for b in mine if b.pod in state.pods)
                changed[id(use)] = _less(use, freed)
    return replace(row.use, gpus=tuple(changed.get(id(use), use) for use in row.use.gpus))


def _explained(booking: Booking, state: DeviceState, gpu_class: GpuClass) -> int:
    whole = state.capacity_bytes or 0
    return whole if gpu_class is not GpuClass.SHARED or booking.hbm_per_gpu_bytes is None else booking.hbm_per_gpu_bytes


def _less(use: GpuUse, freed_bytes: int) -> GpuUse:
    if use.used_bytes is None or use.free_bytes is None:
        return use
    freed = min(use.used_bytes, freed_bytes)
    return replace(use, used_bytes=use.used_bytes - freed, free_bytes=use.free_bytes + freed)
