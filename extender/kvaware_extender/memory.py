"""What is remembered about pods between verbs, bounded: their demand, and what was decided."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cachetools import LRUCache

from kvaware_engine import ObjectKey, PodDecision, PodDemand

__all__ = ["Decided", "Memory"]

MAX_PODS: Final = 20_000
"""Pods between filter and bind are at most some thousand; an entry is about 0.5 KB."""
MAX_DECISIONS: Final = 4096
"""Pods whose last decision can be explained as it was made; about 3 KB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision as it was made: where the pod was to go, with the figures of that moment."""

    decision: PodDecision
    at: datetime


class Memory:
    """Demands by pod UID from filter to bind, decisions by pod UID for the explanation."""

    def __init__(self) -> None:
        self._demands: LRUCache[str, PodDemand | ObjectKey | None] = LRUCache(MAX_PODS)
        """A pod that is not ours may belong to a group of pods that are."""
        self._decided: LRUCache[str, Decided] = LRUCache(MAX_DECISIONS)

    def filtered(self, uid: str, demand: PodDemand | None, *, group: ObjectKey | None = None) -> None:
        """Filter saw this pod; None: it is not ours, and belongs to this group if to any."""
        self._demands[uid] = demand if demand is not None else group

    def knows(self, uid: str) -> bool:
        """Whether filter saw it lately."""
        return uid in self._demands

    def demand(self, uid: str) -> PodDemand | None:
        """What filter found; None: not ours. Raises: KeyError when filter has not seen it."""
        found = self._demands[uid]
        return found if isinstance(found, PodDemand) else None

    def group(self, uid: str) -> ObjectKey | None:
        """The group of a pod that is not ours. Raises: KeyError when filter has not seen it."""
        found = self._demands[uid]
        return None if isinstance(found, PodDemand) else found

    def decided(self, decided: Decided) -> None:
        """Prioritize chose."""
        self._decided[decided.decision.demand.uid] = decided

    def decision(self, uid: str) -> Decided | None:
        """The last choice for this pod."""
        return self._decided.get(uid)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._demands.pop(uid, None)
        self._decided.pop(uid, None)
