"""Refused pods are brought back when the cluster has changed so that they could be placed.

kube-scheduler retries a refused pod when *it* sees a change, which may be before our view has it; refused again, the
pod then waits for 5 minutes (gpushare-scheduler-extender#187, kubernetes#122019). So kvaware looks again when its own
view has changed, and where the verdict went from refused to admitted it writes the pod's condition
``kvaware.io/Placeable``, which brings the pod back at once. It is written only when the verdict changes, and never
about the very state that filter refused: a write per look would be a hot loop.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from cachetools import LRUCache

from kvaware_cluster import ConflictError, NotFoundError, Source
from kvaware_crds.errors import UpstreamError
from kvaware_crds.names import CONDITION_PLACEABLE
from kvaware_engine import REFUSAL_TEXTS, Engine, PodDemand, PodObservation, Reason
from kvaware_extender.errors import is_of_one_object
from kvaware_extender.freshness import Freshness
from kvaware_extender.metrics import Metrics
from kvaware_extender.pace import Pace
from kvaware_extender.settings import WakeUpSettings
from kvaware_extender.view import View

__all__ = ["WakeUps"]

log = structlog.get_logger(__name__)

LOOK_AT_LEAST_EVERY_S: Final = 1.0
"""Without a change of the cluster: intents end, views become fresh again, and failed writes are tried again."""
WRITE_WITHIN_S: Final = 3.0
REFUSED_FOR_S: Final = 30.0
"""A pod whose condition the API server refuses is passed over for this long: the others must not wait behind it."""
UNSEEN_FOR_S: Final = 10.0
"""A refused pod that our store has not seen for this long is taken for gone."""
MOST_OFFERS: Final = 32
"""Different sets of nodes that are remembered. 5,000 names are 0.6 MB; pods of one kind are offered the same set."""
LONGEST_BETWEEN_GUESSES_S: Final = 60.0
"""A pod whose offer is not remembered is woken on a guess; each guess that was wrong doubles the wait, up to this."""
TIME_STEP: Final = timedelta(seconds=1)
"""Kubernetes keeps times in whole seconds, and a patch that changes nothing wakes nobody."""

Offer = frozenset[str]


@dataclass(slots=True)
class _Pod:
    """One pod that filter refused."""

    demand: PodDemand
    reason: Reason
    since_s: float
    offer: Offer | None = None
    """The nodes that kube-scheduler offered; None: too many different offers, so all nodes."""
    refused_at: int | None = None
    """The engine's version when filter refused it; None: refused for no state of the engine (the view was stale)."""
    waiting: bool = True
    """Refused, and not woken since."""
    written: bool | None = None
    """The status of the condition that we wrote last."""
    written_at: datetime | None = None
    guesses: int = 0
    """How often it was woken with its offer unknown."""
    guess_after_s: float = 0.0
    write_after_s: float = 0.0


class WakeUps:
    """The pods that filter refused, and the loop that looks at them again."""

    def __init__(
        self,
        *,
        engine: Engine,
        source: Source,
        view: View,
        freshness: Freshness,
        metrics: Metrics,
        settings: WakeUpSettings,
        pace: Pace,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._engine = engine
        self._source = source
        self._view = view
        self._freshness = freshness
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._pace = pace
        self._pods: LRUCache[str, _Pod] = LRUCache(settings.max_pods)
        """Refused, and not admitted since."""
        self._admitted: LRUCache[str, _Pod] = LRUCache(settings.max_pods)
        """Admitted since; remembered for the condition that was written on them."""
        self._offers: WeakValueDictionary[Offer, Offer] = WeakValueDictionary()
        self._unshared: dict[str, Sequence[str]] = {}
        """Pod UID to the nodes offered in the last refusal, not yet made one of the shared sets."""
        self._poked = asyncio.Event()
        self._looked_at: int | None = None
        """The engine's version at the last complete look; None: look again in any case."""

    def __len__(self) -> int:
        """Pods that were refused and not admitted since."""
        return len(self._pods)

    def __contains__(self, uid: object) -> bool:
        return uid in self._pods or uid in self._admitted

    def refused(self, demand: PodDemand, offered: Sequence[str], reason: Reason) -> None:
        """Filter refused the pod on all of these nodes. Hot path: nothing is computed here."""
        self._unshared[demand.uid] = offered
        pod = self._pods.get(demand.uid) or self._admitted.pop(demand.uid, None)
        if pod is None:
            pod = _Pod(demand, reason, self._clock())
        else:
            pod.demand, pod.reason, pod.waiting = demand, reason, True
        self._pods[demand.uid] = pod
        if reason is Reason.STALE_VIEW:
            pod.refused_at = None
            self._looked_at = None  # the view becomes fresh again without any change of the cluster
        else:
            pod.refused_at = self._engine.version
            if pod.written:
                self._looked_at = None  # the condition says that there is room

    def admitted(self, uid: str) -> None:
        """Filter admitted the pod: it is on its way."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._admitted[uid] = pod

    def forget(self, uid: str) -> None:
        """The pod is bound, or gone."""
        self._pods.pop(uid, None)
        self._admitted.pop(uid, None)
        self._unshared.pop(uid, None)

    def poke(self) -> None:
        """The cluster changed."""
        self._poked.set()

    async def run(self) -> None:
        """Look after each change, once per burst, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AT_LEAST_EVERY_S):
                    await self._poked.wait()
                    await self._sleep(self._settings.debounce_s)
            self._poked.clear()
            await self.look()

    async def look(self) -> None:
        """Judge the remembered pods again, if anything has changed; write the conditions of those whose verdict has."""
        self._share_offers()
        if not self._pods or self._freshness.stale():
            return
        version = self._engine.version
        if version == self._looked_at:
            return
        self._looked_at = version
        verdicts: dict[tuple[PodDemand, int], Reason | None] = {}
        for uid, pod in sorted(self._pods.items(), key=lambda item: (-item[1].demand.priority, item[1].since_s)):
            if uid not in self._pods or not pod.waiting or not self._still_pending(uid, pod):
                continue
            # Pods of one kind with one offer are judged once; the UID only matters to a pod that holds something.
            key = (replace(pod.demand, uid="", name=""), id(pod.offer))
            if key not in verdicts:
                verdicts[key] = self._judge(pod)
                await asyncio.sleep(0)  # a call of kube-scheduler may come between two looks
            if verdicts[key] is not None:
                # Without its offer the verdict is a guess, and taking it back would bring the pod back for nothing.
                go_on = not (pod.written and pod.offer) or await self._write(uid, pod, placeable=False)
            elif pod.refused_at == version:
                continue  # filter refused this very state: room on a node that was not offered
            elif pod.offer is None and self._clock() < pod.guess_after_s:
                self._looked_at = None
                continue
            else:
                # Once more: a pod that was brought back a moment ago may have taken the room.
                go_on = self._judge(pod) is not None or await self._write(uid, pod, placeable=True)
            if not go_on:
                self._looked_at = None  # the next look goes on with it
                return

    def _judge(self, pod: _Pod) -> Reason | None:
        demand = pod.demand
        seen = self._view.pod(demand.namespace, demand.name)
        if seen is not None and seen.uid == demand.uid:
            demand = self._engine.demand(seen)  # its model or tenant may be what has changed
        return self._engine.would_admit(demand, None if pod.offer is None else list(pod.offer), now_s=self._clock())

    def _share_offers(self) -> None:
        """Turn the lists of names into sets that all pods with the same offer share."""
        for uid, names in self._unshared.items():
            pod = self._pods.get(uid)
            if pod is None:
                continue
            offer = frozenset(names)
            pod.offer = self._offers.get(offer)
            if pod.offer is None and len(self._offers) < MOST_OFFERS:
                self._offers[offer] = pod.offer = offer
        self._unshared.clear()

    def _still_pending(self, uid: str, pod: _Pod) -> bool:
        seen = self._view.pod(pod.demand.namespace, pod.demand.name)
        if seen is None or seen.uid != uid:
            if self._clock() - pod.since_s > UNSEEN_FOR_S:
                self.forget(uid)
            else:
                self._looked_at = None
            return False
        if not _pending(seen):
            self.forget(uid)
            return False
        return True

    async def _write(self, uid: str, pod: _Pod, *, placeable: bool) -> bool:
        """Write the pod's condition; False when no more writes may go out for now."""
        if (pod.written is False and not placeable) or self._clock() < pod.write_after_s:
            return True
        if not self._pace.take():
            return False
        demand = pod.demand
        at = datetime.now(UTC)
        if placeable and pod.written and pod.written_at is not None:
            at = max(at, pod.written_at + TIME_STEP)  # refused in between, so it has changed, and must be seen to
        condition = placeable_condition(placeable=placeable, reason=pod.reason, at=at)
        # Noted first: the pod may be back at filter, and refused again, before the write has answered.
        before = (pod.written, pod.waiting)
        pod.written, pod.written_at, pod.waiting = placeable, at, not placeable
        if placeable and pod.offer is None:
            pod.guess_after_s = self._clock() + min(2.0**pod.guesses, LONGEST_BETWEEN_GUESSES_S)
            pod.guesses += 1
        try:
            async with asyncio.timeout(WRITE_WITHIN_S):
                await self._source.patch_pod_condition(
                    namespace=demand.namespace, name=demand.name, uid=uid, condition=condition
                )
        except (NotFoundError, ConflictError):
            self.forget(uid)
            return True
        except (UpstreamError, TimeoutError) as e:
            pod.written, pod.waiting = before
            self._metrics.wakeups["failed"].inc()
            log.warning("pod condition cannot be written", namespace=demand.namespace, pod=demand.name, error=str(e))
            if is_of_one_object(e):
                pod.write_after_s = self._clock() + REFUSED_FOR_S
                return True
            return False
        self._metrics.wakeups[condition["status"]].inc()
        log.info("pod condition written", namespace=demand.namespace, pod=demand.name, uid=uid, placeable=placeable)
        return True


def placeable_condition(*, placeable: bool, reason: Reason, at: datetime) -> dict[str, Any]:
    """The pod condition that says whether kvaware sees room; its texts are constant per reason."""
    return {
        "type": CONDITION_PLACEABLE,
        "status": "True" if placeable else "False",
        "reason": "RoomFound" if placeable else str(reason),
        "message": "kvaware: a node can take the pod now" if placeable else REFUSAL_TEXTS[reason],
        "lastTransitionTime": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _pending(pod: PodObservation) -> bool:
    return pod.node is None and not pod.finished and not pod.terminating
