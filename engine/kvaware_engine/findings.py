"""What scrapes show about pods that people should know: use above the reservation, and use that nobody can see.

A verdict comes only after it has held for a while, both ways: an exporter that comes and goes, or a figure that swings
around its limit, must not become a stream of writes. Until then, and where nobody can tell, it is None: what was said
before stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from kvaware_engine.observations import GpuClass, NodeUse, ObjectKey, PodObservation, Reservation
from kvaware_engine.settings import FindingSettings

__all__ = ["Findings", "PodFindings", "own_reservation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFindings:
    """The verdicts on one pod; None: not decided, or nobody can tell."""

    hbm_overrun: bool | None = None
    """Whether it uses more HBM than it reserved, beyond a tolerance. Said only of a pod on shared GPUs that the
    exporter names as their only user: a whole GPU or a slice is the pod's own, of several pods nobody knows which."""
    foreign_use_unknown: bool | None = None
    """Whether its node has no exporter that shows what other programs use, although its HBM was checked there."""


_STATES: Final = (None, False, True)
_FINDINGS: Final = {
    (overrun, unknown): PodFindings(hbm_overrun=overrun, foreign_use_unknown=unknown)
    for overrun in _STATES
    for unknown in _STATES
}
"""All there are: 40,000 pods share them."""
_UNDECIDED: Final = _FINDINGS[None, None]
_SETTLED_AT_ONCE: Final = 64
"""Nodes, some 3 ms with 8 pods each: a minute after the start all are due, 5,000 take 80 ticks."""


@dataclass(slots=True)
class _Streak:
    """Scrapes in a row that say the same of one pod."""

    over: bool
    scrapes: int = 1


@dataclass(slots=True)
class _Node:
    seen: bool
    """Whether an exporter shows its use now."""
    since_s: float
    settled: bool | None = None
    """What has held for long enough; None: nothing yet."""
    scraped_at_s: float = float("-inf")
    pods: dict[str, PodObservation] = field(default_factory=dict)
    """UID to pod, of those that a verdict can be given on."""


class Findings:
    """Verdicts on pods, node by node. One owner; every method is synchronous."""

    def __init__(self, settings: FindingSettings) -> None:
        self._settings = settings
        self._nodes: dict[str, _Node] = {}
        self._unsettled: set[str] = set()
        self._streaks: dict[str, _Streak] = {}
        """Pod UID to what the exporter says of it."""
        self._verdicts: dict[str, PodFindings] = {}
        self._changed: set[str] = set()

    def pod(self, uid: str, before: PodObservation | None, after: PodObservation | None, *, now_s: float) -> None:
        """A pod came, changed or went."""
        left, now_on = _concerned_node(before), _concerned_node(after)
        if left is not None and left != now_on:
            self._nodes[left].pods.pop(uid, None)
            self._streaks.pop(uid, None)
            self._verdicts.pop(uid, None)
            self._changed.discard(uid)
            self._forget_if_idle(left)
        if now_on is not None and after is not None:
            node = self._node(now_on, now_s=now_s)
            node.pods[uid] = after
            if left != now_on and node.settled is not None:
                self._say(uid, foreign_use_unknown=not node.settled)

    def scraped(self, name: str, use: NodeUse | None, *, now_s: float) -> None:
        """An exporter was heard (again), or (None) is not heard any more."""
        shows = use is not None and any(gpu.used_bytes is not None for gpu in use.gpus)
        if not shows and name not in self._nodes:
            return
        node = self._node(name, now_s=now_s)
        if node.seen != shows:
            node.seen, node.since_s = shows, now_s
            self._unsettled.add(name)
        if use is not None and use.observed_at_s > node.scraped_at_s:  # the same scrape may be told twice
            node.scraped_at_s = use.observed_at_s
            self._compare(node, use)
        self._forget_if_idle(name)

    def tick(self, now_s: float) -> None:
        """What has held for long enough becomes the verdict, of some nodes at a time."""
        held = (name for name in self._unsettled if now_s - self._nodes[name].since_s >= self._settings.hold_s)
        for name in list(islice(held, _SETTLED_AT_ONCE)):
            self._unsettled.discard(name)
            node = self._nodes[name]
            node.settled = node.seen
            for uid in node.pods:
                self._say(uid, foreign_use_unknown=not node.settled)

    def take(self) -> Mapping[str, PodFindings]:
        """Pod UID to verdicts, of the pods whose verdicts have changed since the last call."""
        taken = {uid: self._verdicts[uid] for uid in self._changed}
        self._changed.clear()
        return taken

    def of(self, uid: str) -> PodFindings:
        """The verdicts on one pod as they stand."""
        return self._verdicts.get(uid, _UNDECIDED)

    def _node(self, name: str, *, now_s: float) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(seen=False, since_s=now_s)
            self._unsettled.add(name)
        return node

    def _forget_if_idle(self, name: str) -> None:
        node = self._nodes[name]
        if not node.pods and not node.seen:
            del self._nodes[name]
            self._unsettled.discard(name)

    def _compare(self, node: _Node, use: NodeUse) -> None:
        """Hold what the exporter shows of each pod against its reservation."""
        used: dict[ObjectKey, list[int]] = {}
        for gpu in use.gpus:
            if gpu.pod is not None and gpu.used_bytes is not None:
                used.setdefault(gpu.pod, []).append(gpu.used_bytes)
        if not used:
            return
        for uid, pod in node.pods.items():
            devices = used.get(ObjectKey(pod.namespace, pod.name))
            reservation = pod.reservation
            if devices is None or reservation is None or reservation.gpu_class is not GpuClass.SHARED:
                continue
            if reservation.hbm_per_gpu_bytes is not None:
                self._count(uid, over=self._is_over(devices, reservation.gpus, reservation.hbm_per_gpu_bytes))

    def _is_over(self, devices: list[int], gpus: int, hbm_per_gpu_bytes: int) -> bool:
        """Whether one device shows more than the pod may use there.

        Several of its replicas may be of one device: then all that it reserved may be used there.
        """
        allowed = hbm_per_gpu_bytes if len(devices) >= gpus else hbm_per_gpu_bytes * gpus
        return max(devices) > allowed + self._settings.overrun_tolerance_bytes

    def _count(self, uid: str, *, over: bool) -> None:
        streak = self._streaks.get(uid)
        if streak is None or streak.over != over:
            streak = self._streaks[uid] = _Streak(over)
        else:
            streak.scrapes = min(streak.scrapes + 1, self._settings.hold_scrapes)
        if streak.scrapes >= self._settings.hold_scrapes:
            self._say(uid, hbm_overrun=over)

    def _say(self, uid: str, *, hbm_overrun: bool | None = None, foreign_use_unknown: bool | None = None) -> None:
        """Give verdicts; None leaves what was said before."""
        before = self.of(uid)
        after = _FINDINGS[
            before.hbm_overrun if hbm_overrun is None else hbm_overrun,
            before.foreign_use_unknown if foreign_use_unknown is None else foreign_use_unknown,
        ]
        if after is not before:
            self._verdicts[uid] = after
            self._changed.add(uid)


def own_reservation(pod: PodObservation) -> Reservation | None:
    """The reservation that was made for this very pod: one copied from elsewhere says nothing."""
    reservation = pod.reservation
    if reservation is None or not reservation.decision_id.startswith(f"{pod.uid}-"):
        return None
    return reservation


def _concerned_node(pod: PodObservation | None) -> str | None:
    """The node of a pod that kvaware bound to shared GPUs or after checking HBM; None for others, and at their end."""
    if pod is None or pod.node is None or pod.finished or pod.terminating:
        return None
    reservation = own_reservation(pod)
    if reservation is None or not reservation.gpus:
        return None
    checked = reservation.gpu_class is GpuClass.SHARED or reservation.hbm_per_gpu_bytes is not None
    return pod.node if checked else None
