"""How many replicas a role should have: from its load, its objectives, and what fits.

The load's signals each ask for a real number of replicas; the greatest holds. Windows and a margin make of it a number
that stays. Then come the things that hold back: steps, replicas that cannot be scheduled or are starting, HBM.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from kvaware_engine.capacity import MOST_NEEDED, PREFILL, replicas_needed, traffic_of
from kvaware_engine.headroom import MOST_REPLICAS
from kvaware_engine.observations import ObjectKey
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile, ProfileOrigin
from kvaware_engine.reports import RoleLoad
from kvaware_engine.role_state import RoleState
from kvaware_engine.scaling_words import ScalingPlan, ScalingReason, ScalingRequest
from kvaware_engine.settings import ScalingSettings
from kvaware_engine.signals import Signal, everyone, is_comfortable, kv_signal, objective_signal, queue_signal
from kvaware_engine.stabilizer import settled_replicas

__all__ = ["Scaler"]

_EDGE: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What the load asks for now."""

    main: Signal
    """The signal that asks for most."""
    terms: Mapping[str, float]


class Scaler:
    """Plans for all roles; remembers of each what its load asked for.

    A plan is the same however often it is asked for at one ``now_s``. Memory: a few kilobytes per role, until
    ``forget``.
    """

    def __init__(
        self,
        settings: ScalingSettings | None = None,
        profiles: Mapping[str, HardwareProfile] | None = None,
        *,
        now_s: float,
    ) -> None:
        self._settings = settings or ScalingSettings()
        self._book = ProfileBook(profiles or {})
        self._started_s = now_s
        self._roles: dict[ObjectKey, dict[str, RoleState]] = {}

    def forget(self, model: ObjectKey) -> None:
        """The model is gone."""
        self._roles.pop(model, None)

    def plan(self, request: ScalingRequest, *, now_s: float) -> ScalingPlan:
        """What to do about one role now. Called at every poll of its load."""
        roles = self._roles.setdefault(request.model, {})
        state = roles.get(request.role)
        if state is None:
            state = roles[request.role] = RoleState(request, since_s=now_s)
        state.see(request, now_s=now_s)
        asked = self._ask(request, state, now_s=now_s)
        if request.min_replicas > request.max_replicas:
            return ScalingPlan(
                desired=None,
                target=request.replicas,
                reason=ScalingReason.INVALID_BOUNDS,
                message=f"replicas.min is {request.min_replicas}, above replicas.max, {request.max_replicas}: "
                f"the number stays at {request.replicas}",
                terms={} if asked is None else asked.terms,
            )
        plan = self._follow(request, state, asked, now_s=now_s)
        plan = self._within_bounds(request, plan)
        return self._as_far_as_it_fits(request, state, plan, now_s=now_s)

    # --- what the load asks for

    def _ask(self, request: ScalingRequest, state: RoleState, *, now_s: float) -> _Asked | None:
        """Hear the signals, learn from them, and remember what they ask for; None: the load is unknown."""
        load = request.load
        if load is None or not _tells(load, self._settings):
            # Nobody knows what was asked for in this time: as many as there are, so that no window runs out over it.
            state.up.ask(request.replicas, now_s=now_s)
            state.down.ask(request.replicas, now_s=now_s)
            return None
        settings, rules = self._settings, request.rules
        serving = float(max(1, request.ready_replicas))
        drains = state.queue_drains(load, settings, now_s=now_s)
        heard = (
            queue_signal(load, serving=serving, rules=rules, drains=drains, settings=settings),
            objective_signal(load, serving=serving, rules=rules, settings=settings),
            kv_signal(load, serving=serving, settings=settings),
        )
        signals = [signal for signal in heard if signal is not None]
        terms = {f"{_TERM[signal.reason]}_replicas": signal.replicas for signal in signals}
        pressed = any(signal.replicas > serving + _EDGE for signal in signals)
        stuck = state.stuck(request, settings, now_s=now_s)
        capacity, more_terms = self._capacity(
            request, state, load, serving=serving, stuck=stuck, pressed=pressed, now_s=now_s
        )
        main = max([*signals, capacity], key=lambda signal: signal.replicas)
        if stuck:
            more_terms["stuck_replicas"] = stuck
            text = f"{main.text}; {stuck} of {request.replicas} do not become Ready"
            main = replace(main, replicas=main.replicas + stuck, text=text)
        main = replace(main, replicas=min(main.replicas, MOST_NEEDED))  # a rate of almost nothing makes it infinite
        state.up.ask(main.replicas, now_s=now_s)
        state.down.ask(main.replicas, now_s=now_s)
        return _Asked(main=main, terms=terms | more_terms)

    def _capacity(
        self,
        request: ScalingRequest,
        state: RoleState,
        load: RoleLoad,
        *,
        serving: float,
        stuck: int,
        pressed: bool,
        now_s: float,
    ) -> tuple[Signal, dict[str, float]]:
        """What the work asks for: by its token rates, else by what runs, else as many as there are."""
        settings, rules = self._settings, request.rules
        profile = self._book.find(request.product, request.model_id, request.gpus_per_pod * request.pods_per_replica)
        guess = profile.origin is ProfileOrigin.GUESS
        traffic = traffic_of(load, profile, settings)
        batch = profile.largest_batch(rules.tpot_ms, at_most=settings.batch_max)
        if traffic is not None:
            lessons = state.by_tokens
            needed = replicas_needed(traffic, profile, ttft_ms=rules.ttft_ms, tpot_ms=rules.tpot_ms, settings=settings)
        elif load.running is not None and load.role != PREFILL:
            lessons = state.by_running
            needed = load.running * everyone(load) / (batch * settings.utilization_max_ratio)
        else:
            present = float(request.replicas - stuck)
            text = "how much work comes is not told"
            return Signal(reason=ScalingReason.LOAD_FITS, replicas=present, text=text), {}
        comfort = is_comfortable(load, serving=serving, rules=rules, settings=settings)
        # Without an objective an empty queue proves nothing against a measurement, but enough against a guess.
        comfortable = comfort or (comfort is None and guess)
        lessons.learn(
            needed=needed,
            serving=serving,
            replicas=request.replicas,
            pressed=pressed,
            comfortable=comfortable,
            at_minimum_s=rules.down_window_s if request.replicas <= request.min_replicas else None,
            settings=settings,
            now_s=now_s,
        )
        asked = lessons.asked(needed)
        if comfortable:
            asked = min(asked, float(request.replicas))
        if traffic is None:
            text = f"{(load.running or 0) * everyone(load):.0f} requests run"
        elif traffic.tokens_per_s > 0 and asked > 0:
            text = f"{traffic.tokens_per_s:.0f} tokens/s come, a replica does {traffic.tokens_per_s / asked:.0f}"
        else:
            text = "no tokens come"
        terms = {
            "capacity_replicas": asked,
            "profile_replicas": needed,
            "correction": lessons.ratio,
            "profile_is_guess": float(guess),
            "profile_is_extrapolated": float(
                profile.extrapolates(prompt_tokens=traffic.prompt_tokens if traffic else 0, batch=batch)
            ),
        }
        if traffic is not None:
            terms["tokens_per_s"] = traffic.tokens_per_s
        return Signal(reason=ScalingReason.CAPACITY, replicas=asked, text=text), terms

    # --- what follows from it

    def _follow(self, request: ScalingRequest, state: RoleState, asked: _Asked | None, *, now_s: float) -> ScalingPlan:
        """Windows, margin and steps; bounds and room come after."""
        present, rules, settings = request.replicas, request.rules, self._settings
        if asked is None:
            return ScalingPlan(
                desired=None,
                target=present,
                reason=ScalingReason.LOAD_UNKNOWN,
                message=f"{_unknown(request)}: the number stays at {present}",
            )
        now = asked.main.replicas
        margin = settings.down_margin_ratio
        watched_s = now_s - state.since_s
        least_up = state.up.least if rules.up_window_s > 0 else now
        if watched_s < rules.up_window_s:
            least_up = min(least_up, float(present))
        most_down = state.down.most if rules.down_window_s > 0 else now
        wanted = settled_replicas(present, least_up=least_up, most_down=most_down, margin_ratio=margin)
        at_once = settled_replicas(present, least_up=now, most_down=now, margin_ratio=margin)
        unwatched_s = rules.down_window_s - min(watched_s, now_s - self._started_s)
        floor = min(present, request.min_replicas)
        if wanted < present and unwatched_s > 0:
            wanted = present
        desired = min(max(wanted, request.min_replicas), request.max_replicas)
        text = asked.main.text

        def plan(target: int, reason: ScalingReason, message: str) -> ScalingPlan:
            return ScalingPlan(desired=desired, target=target, reason=reason, message=message, terms=asked.terms)

        if wanted > present:
            target = min(wanted, present + rules.up_step)
            return plan(target, asked.main.reason, f"{text}: {_count(wanted, 'replica')} asked for, {present} there")
        if wanted < present:
            lowest = max(wanted, floor, present - rules.down_step)
            if lowest == present:
                return plan(present, ScalingReason.AT_MINIMUM, f"{text}: {present} is the minimum")
            if now_s - state.lowered_at_s < settings.down_step_interval_s:
                return plan(present, ScalingReason.LESS_LOAD, f"{text}: {desired} would do, one step at a time")
            return plan(lowest, ScalingReason.LESS_LOAD, f"{text}: {desired} would do, {present} there")
        if at_once > present:
            message = f"{text}: {_count(at_once, 'replica')} asked for, not yet for {rules.up_window_s:.0f} s"
            return plan(present, ScalingReason.WAITS_FOR_WINDOW, message)
        if max(at_once, floor) < present:
            if unwatched_s > 0:
                message = f"{text}: {at_once} would do, the load is watched for another {unwatched_s:.0f} s first"
                return plan(present, ScalingReason.AFTER_RESTART, message)
            message = f"{text}: {at_once} would do, more were asked for in the last {rules.down_window_s:.0f} s"
            return plan(present, ScalingReason.WAITS_FOR_WINDOW, message)
        if at_once < present:
            return plan(present, ScalingReason.AT_MINIMUM, f"{text}: {present} is the minimum")
        return plan(present, ScalingReason.LOAD_FITS, f"{text}: {_count(present, 'replica')} will do")

    @staticmethod
    def _within_bounds(request: ScalingRequest, plan: ScalingPlan) -> ScalingPlan:
        """Bring the number between minimum and maximum, at once."""
        present, low, high = request.replicas, request.min_replicas, request.max_replicas
        if present < low and plan.target <= low:
            message = f"{present} replicas are below the minimum of {low}"
            return replace(plan, target=low, reason=ScalingReason.BELOW_MINIMUM, message=message)
        if present > high:
            message = f"{present} replicas are above the maximum of {high}"
            return replace(plan, target=high, reason=ScalingReason.ABOVE_MAXIMUM, message=message)
        if plan.target > high:
            plan = replace(plan, target=high, message=f"{plan.message}; {high} is the maximum")
            if present == high:
                return replace(plan, reason=ScalingReason.AT_MAXIMUM)
        return plan

    def _as_far_as_it_fits(
        self, request: ScalingRequest, state: RoleState, plan: ScalingPlan, *, now_s: float
    ) -> ScalingPlan:
        """Add replicas only where they can be scheduled and fit."""
        present, more = request.replicas, plan.target - request.replicas
        if more <= 0:
            return plan
        held = replace(plan, target=present)
        if request.unschedulable_pods > 0:
            message = f"{plan.message}; {_count(request.unschedulable_pods, 'pod')} cannot be scheduled"
            return replace(held, reason=ScalingReason.REPLICA_UNSCHEDULABLE, message=message)
        if state.starting(self._settings, now_s=now_s):
            if present >= request.min_replicas:
                message = f"{plan.message}; {request.ready_replicas} of {present} are Ready, the last ones are starting"
                return replace(held, reason=ScalingReason.REPLICAS_STARTING, message=message)
            # The minimum is not for the load: it does not wait for what the others will take over.
            plan = replace(plan, target=request.min_replicas)
            more = plan.target - present
        room = request.headroom
        if room is None or room.asked_replicas <= 0:
            return replace(held, ask_headroom=min(more, MOST_REPLICAS))
        fits = min(room.fits_replicas, more)
        if fits == more or room.fits_replicas >= room.asked_replicas:
            return replace(plan, target=present + fits)
        lacking = room.text.removeprefix("kvaware: ")
        why = f": {lacking}" if lacking else ""
        return replace(
            plan,
            target=present + fits,
            reason=ScalingReason.HBM_CONSTRAINED,
            message=f"{plan.message}; {fits} of {more} more fit{why}",
            hbm_constrained=True,
            lacking=lacking,
        )


_TERM: Final[Mapping[ScalingReason, str]] = {
    ScalingReason.QUEUE_GROWS: "queue",
    ScalingReason.OBJECTIVE_MISSED: "objective",
    ScalingReason.KV_PRESSURE: "kv",
}


def _tells(load: RoleLoad, settings: ScalingSettings) -> bool:
    """Whether enough workers report, and say anything that a number can follow from."""
    if load.workers <= 0 or load.reporting < ceil(load.workers * settings.least_reporting_ratio):
        return False
    figures = (load.waiting, load.kv_usage_ratio, load.prompt_tokens_per_s, load.generation_tokens_per_s)
    return load.reporting > 0 and any(figure is not None for figure in figures)


def _unknown(request: ScalingRequest) -> str:
    load = request.load
    if load is None:
        return "the load is not known"
    if load.workers <= 0:
        return "no worker is Ready, so the load is not known"
    return f"{load.reporting} of {_count(load.workers, 'worker')} report, so the load is not known"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
