"""What was observed corrects the hardware profile: how many replicas really did with a load.

Three lessons, each from what lasted longer than the window of the rates, or was tried:

- Replicas that stay pressed (queue, missed objective, full KV pools) do no more than they do now.
- Replicas that stay comfortable do at least what they do now, whatever the profile says.
- A scale-down that had to be taken back at no more load was wrong: at such a load the number is kept.

A role that was at its minimum for a while, unpressed, forgets the first and the third: what a fault taught is not paid
for ever.
"""

from kvaware_engine.settings import ScalingSettings

__all__ = ["Lessons"]

_SAME_LOAD_RATIO = 0.15
"""Loads that differ by less count as the same."""
_KEEP_RATIO = 0.95
"""Share of the replicas asked for when a number is kept: near enough to keep it, and no reason to add one."""
_KEPT = 16
"""Numbers of replicas for which a lesson is kept."""


class Lessons:
    """Of one role. ``needed`` is what the profile alone asks for."""

    __slots__ = (
        "_at_minimum_since_s",
        "_comfortable_since_s",
        "_kept",
        "_lowered",
        "_needed",
        "_pressed_since_s",
        "_serving",
        "ratio",
    )

    def __init__(self) -> None:
        self.ratio = 1.0
        """Times what the profile asks for."""
        self._serving = 0.0
        self._needed = 0.0
        """When last looked at."""
        self._pressed_since_s: float | None = None
        self._comfortable_since_s: float | None = None
        self._at_minimum_since_s: float | None = None
        self._lowered: tuple[float, int, float] | None = None
        """Time, replicas before, and what was needed then."""
        self._kept: dict[int, float] = {}
        """Replicas → the lowest load (as needed by the profile) that was seen to need them."""

    def lowered(self, *, before: int, now_s: float) -> None:
        """The replicas became fewer."""
        if self._needed:
            self._lowered = (now_s, before, self._needed)

    def asked(self, needed: float) -> float:
        """Replicas that the profile, as corrected, asks for."""
        kept = max((n for n, load in self._kept.items() if needed >= load * (1 - _SAME_LOAD_RATIO)), default=0)
        return max(needed * self.ratio, kept * _KEEP_RATIO)

    def learn(
        self,
        *,
        needed: float,
        serving: float,
        replicas: int,
        pressed: bool,
        comfortable: bool,
        at_minimum_s: float | None,
        settings: ScalingSettings,
        now_s: float,
    ) -> None:
        """Look at the present state once.

        Args:
            needed: By the profile, 0 or more.
            serving: Ready replicas.
            replicas: As set.
            pressed: Queue, latencies or KV pools ask for more than ``serving``.
            comfortable: They prove that ``serving`` suffice.
            at_minimum_s: How long the role has to be at its minimum to forget; None: it is above it.
            settings: Times and bounds.
            now_s: Now.
        """
        self._needed = needed
        if serving != self._serving:
            # The rates are still those of the replicas before.
            self._serving, self._pressed_since_s, self._comfortable_since_s = serving, None, None
        self._pressed_since_s = _since(self._pressed_since_s, on=pressed, now_s=now_s)
        self._comfortable_since_s = _since(self._comfortable_since_s, on=comfortable, now_s=now_s)
        calm = at_minimum_s is not None and not pressed
        self._at_minimum_since_s = _since(self._at_minimum_since_s, on=calm, now_s=now_s)
        if needed > 0:
            if _lasted(self._pressed_since_s, settings.learn_after_s, now_s):
                self.ratio = min(settings.correction_max, max(self.ratio, serving / needed))
            if _lasted(self._comfortable_since_s, settings.learn_after_s, now_s) and needed * self.ratio > serving:
                self.ratio = serving / needed
            if pressed and self._lowered is not None:
                self._regret(needed, replicas=replicas, settings=settings, now_s=now_s)
        if at_minimum_s is not None and _lasted(self._at_minimum_since_s, at_minimum_s, now_s):
            self.ratio = min(1.0, self.ratio)
            self._kept.clear()

    def _regret(self, needed: float, *, replicas: int, settings: ScalingSettings, now_s: float) -> None:
        if self._lowered is None:
            return
        lowered_at_s, before, needed_then = self._lowered
        if now_s - lowered_at_s > settings.regret_s or replicas >= before:
            self._lowered = None
        elif needed <= needed_then * (1 + _SAME_LOAD_RATIO):
            self._lowered = None
            self._kept[before] = min(needed, needed_then, self._kept.get(before, needed))
            if len(self._kept) > _KEPT:
                del self._kept[min(self._kept)]


def _since(since_s: float | None, *, on: bool, now_s: float) -> float | None:
    if not on:
        return None
    return now_s if since_s is None else since_s


def _lasted(since_s: float | None, long_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= long_s
