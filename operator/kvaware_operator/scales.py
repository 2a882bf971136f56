"""The scale of every workload that is scaled, read when it changed: at rest nothing is asked.

What a read found, a refusal included, holds until a watch tells that the workload changed, until we write it, or until
it is old.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvaware_cluster import ClusterApiError, NotFoundError
from kvaware_cluster.backoff import Backoff
from kvaware_cluster.errors import ScaleTargetError
from kvaware_cluster.workloads import ClusterApi, Scale, ScaleTarget
from kvaware_crds.errors import UpstreamError

__all__ = ["ScaleProblem", "Scales"]

NOT_FOUND: Final = "TargetNotFound"
PROBLEM_MAX_AGE_S: Final = 300.0
JITTER: Final = 0.2
"""Share by which each workload's next read is moved: those read together at the start spread out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleProblem:
    """Why a workload's scale cannot be had."""

    reason: str
    """One CamelCase word, of the condition ``Scalable``."""
    message: str
    unknown: bool = False
    """Whether that may only be so for now: the API server gave no answer."""


@dataclass(slots=True)
class _Entry:
    found: Scale | ScaleProblem | None = None
    good_until_s: float = 0.0
    changed: bool = False
    """Whether it changed since the last read began."""
    backoff: Backoff | None = None


class Scales:
    """A cache. It has one owner, and reads of one target do not overlap: each is scaled by one model alone."""

    def __init__(
        self,
        api: ClusterApi,
        *,
        max_age_s: float,
        unwatched_max_age_s: float,
        watched: Callable[[ScaleTarget], bool],
        clock: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        """Ask nothing yet.

        Args:
            api: Where scales are read.
            max_age_s: Of a workload whose changes are told to ``changed``.
            unwatched_max_age_s: Of one whose changes nobody tells.
            watched: Which is the case.
            clock: Monotonic seconds.
            rng: For jitter.
        """
        self._api = api
        self._max_age_s, self._unwatched_max_age_s = max_age_s, unwatched_max_age_s
        self._watched = watched
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret
        self._entries: dict[ScaleTarget, _Entry] = {}

    async def read(self, target: ScaleTarget) -> Scale | ScaleProblem:
        """The scale as last read, or read now."""
        entry = self._entries.setdefault(target, _Entry())
        if entry.found is not None and self._clock() < entry.good_until_s:
            return entry.found
        entry.changed = False
        try:
            found: Scale | ScaleProblem = await self._api.read_scale(target)
        except (UpstreamError, ScaleTargetError) as error:
            found = problem_of(target, error)
        self._keep(target, entry, found)
        return found

    def last(self, target: ScaleTarget) -> Scale | ScaleProblem | None:
        """As found last; None: never asked."""
        entry = self._entries.get(target)
        return None if entry is None else entry.found

    def put(self, target: ScaleTarget, found: Scale | ScaleProblem) -> None:
        """What a write answered. It holds until a watch tells of it, too: then it is read."""
        entry = self._entries.setdefault(target, _Entry())
        entry.changed = False
        self._keep(target, entry, found)

    def _keep(self, target: ScaleTarget, entry: _Entry, found: Scale | ScaleProblem) -> None:
        if isinstance(found, ScaleProblem) and found.unknown:
            entry.backoff = entry.backoff or Backoff(1.0, self._unwatched_max_age_s, self._rng)
            wait_s = entry.backoff.next_s()
        else:
            entry.backoff = None
            wait_s = self._max_age_of(target, found) * (1 - JITTER * self._rng.random())
        entry.found = found
        entry.good_until_s = 0.0 if entry.changed else self._clock() + wait_s  # changed while it was read: read again

    def _max_age_of(self, target: ScaleTarget, found: Scale | ScaleProblem) -> float:
        if isinstance(found, ScaleProblem) and found.reason != NOT_FOUND:
            return PROBLEM_MAX_AGE_S  # a right that is granted, a kind that gets a scale: no watch tells
        return self._max_age_s if self._watched(target) else self._unwatched_max_age_s

    def changed(self, target: ScaleTarget) -> None:
        """The workload changed, or may have: read it before it is relied on again."""
        entry = self._entries.get(target)
        if entry is not None:
            entry.changed, entry.good_until_s = True, 0.0

    def forget(self, target: ScaleTarget) -> None:
        """Nobody scales it any more."""
        self._entries.pop(target, None)


def problem_of(target: ScaleTarget, error: UpstreamError | ScaleTargetError) -> ScaleProblem:
    """Why a workload's scale could not be read or written, for the condition ``Scalable``."""
    what = f"{target.kind} {target.name} ({target.api_version})"
    if isinstance(error, ScaleTargetError):
        return ScaleProblem(reason="TargetNotScalable", message=f"{what}: {error}")
    if isinstance(error, NotFoundError):
        return ScaleProblem(reason=NOT_FOUND, message=f"{what}: there is none in the namespace {target.namespace}")
    if isinstance(error, ClusterApiError) and error.status in {401, 403}:
        return ScaleProblem(reason="Forbidden", message=f"{what}: the operator may not read or write its scale")
    return ScaleProblem(reason="ApiUnavailable", message=f"{what}: its scale could not be read", unknown=True)
