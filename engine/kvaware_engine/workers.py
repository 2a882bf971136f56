"""All workers as they report themselves: who is expected, what is known of each, and what a model's load is.

One owner, no clock: ``now_s`` is an argument. Where scrape and heartbeat tell the same figure, the one *observed* later
holds, whatever arrives last.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Any, Final, NamedTuple, cast

from kvaware_engine.cache_value import cache_value_ms, chance_of_reuse
from kvaware_engine.counters import BucketGrowth, quantile_s
from kvaware_engine.observations import ObjectKey
from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.reports import ModelLoad, ReportTimes, RoleLoad, WorkerPlace, WorkerReport, WorkerView
from kvaware_engine.settings import WorkerSettings
from kvaware_engine.worker_state import WorkerState

__all__ = ["ReportVerdict", "Workers"]

_P99: Final = 0.99
_MS_PER_S: Final = 1000.0


class ReportVerdict(StrEnum):
    """What became of a report."""

    TAKEN = "taken"
    OLDER = "older"
    """Nothing in it is later than what is known, or it is of another incarnation than the API server shows."""
    UNKNOWN_WORKER = "unknown_worker"
    """The API server shows no such worker of that model."""


class Workers:
    """Expected workers and their reports.

    Memory is bounded by the workers that the API server shows, and those gone for less than ``absence_kept_s``.
    """

    def __init__(
        self, settings: WorkerSettings | None = None, profiles: Mapping[str, HardwareProfile] | None = None
    ) -> None:
        self.settings = self._settings = settings or WorkerSettings()
        self._book = ProfileBook(profiles or {})
        self._workers: dict[str, WorkerState] = {}
        self._of_model: dict[ObjectKey, set[str]] = {}
        self._gone: set[str] = set()
        self._listeners: list[Callable[[str], None]] = []
        self.version = 0
        """Grows with everything that is taken in."""

    def subscribe(self, listener: Callable[[str], None]) -> None:
        """Have it told the worker's id after each change: expected, reported, gone, forgotten.

        It is called in the middle of what changes the workers: it may note the id, or read, and must change nothing.
        """
        self._listeners.append(listener)

    def _changed(self, worker: str) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(worker)

    def expect(self, worker: str, place: WorkerPlace | None) -> None:
        """The API server shows the worker there; None: it shows it no more.

        The same incarnation keeps what was known, also after a short absence (ai-dynamo/dynamo#13513); a new one starts
        over.
        """
        state = self._workers.get(worker)
        if place is None:
            if state is not None and not state.gone:
                state.gone = True
                self._gone.add(worker)
                self._changed(worker)
            return
        if state is None:
            state = self._workers[worker] = WorkerState(place, window_s=self._settings.rate_window_s)
        elif state.gone or state.place != place:
            self._of_model[state.place.model].discard(worker)
            if not self._of_model[state.place.model]:
                del self._of_model[state.place.model]
            state.move(place)
            self._gone.discard(worker)
        else:
            return
        self._of_model.setdefault(place.model, set()).add(worker)
        self._changed(worker)

    def observe(self, report: WorkerReport, *, now_s: float) -> ReportVerdict:
        """Take a report over, figure by figure.

        A report from the future counts as observed now: a clock that is ahead must not shut out later reports.
        """
        self.tick(now_s)
        state = self._workers.get(report.worker)
        if state is None or state.gone or state.place.model != report.model:
            return ReportVerdict.UNKNOWN_WORKER
        if state.place.incarnation != report.incarnation:
            return ReportVerdict.OLDER
        at_s = min(report.observed_at_s, now_s)
        if not state.take(report, at_s=at_s, timeout_s=self._settings.report_timeout_s):
            return ReportVerdict.OLDER
        self._changed(report.worker)
        return ReportVerdict.TAKEN

    def tick(self, now_s: float) -> None:
        """Forget workers that have been gone too long. The other methods call it: while nobody is gone it is free."""
        for worker in tuple(self._gone):
            state = self._workers[worker]
            if state.absent_since_s is None:
                state.absent_since_s = now_s
            elif now_s - state.absent_since_s > self._settings.absence_kept_s:
                del self._workers[worker]
                self._gone.discard(worker)
                others = self._of_model[state.place.model]
                others.discard(worker)
                if not others:
                    del self._of_model[state.place.model]
                self._changed(worker)

    def load(self, model: ObjectKey, roles: Sequence[str], *, now_s: float) -> ModelLoad:
        """The model's traffic now, one entry per role in the order given. An unknown model has roles without workers.

        Only Ready workers that neither drain nor sleep count: the others take no new requests.
        """
        slices = self.load_in_slices(model, roles, now_s=now_s, at_a_time=0)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                return cast("ModelLoad", end.value)

    def load_in_slices(
        self, model: ObjectKey, roles: Sequence[str], *, now_s: float, at_a_time: int
    ) -> Generator[None, None, ModelLoad]:
        """The same as ``load``, for who lets others come between: 1,000 workers take 50 ms.

        It yields after so many workers each (0: never). Who comes, goes or reports meanwhile counts as it was when its
        turn came, or when it began.
        """
        self.tick(now_s)
        since_s = now_s - self._settings.report_timeout_s
        serving: dict[str, list[WorkerState]] = {}
        told: dict[str, list[_Told]] = {}
        for number, state in enumerate(tuple(self._shown(model)), start=1):
            if state.place.ready and not state.lasting("draining") and not state.lasting("asleep"):
                role = state.place.role
                serving.setdefault(role, []).append(state)
                if state.at_s >= since_s:
                    told.setdefault(role, []).append(_told(state, since_s=since_s, is_new=self._is_new(state, now_s)))
            if at_a_time and number % at_a_time == 0:
                yield
        loads = []
        for role in roles:
            loads.append(self._role_load(role, serving.get(role, ()), told.get(role, ()), now_s=now_s))
            if at_a_time:
                yield
        return ModelLoad(model=model, roles=tuple(loads))

    def views(self, model: ObjectKey | None = None, *, now_s: float) -> list[WorkerView]:
        """All workers that the API server shows, or one model's, in the order of their ids."""
        self.tick(now_s)
        shown = self._shown(model) if model is not None else (each for each in self._workers.values() if not each.gone)
        return sorted((self._view(state, now_s=now_s) for state in shown), key=lambda view: view.worker)

    def place(self, worker: str) -> WorkerPlace | None:
        """Where the API server shows it, or showed it less than ``absence_kept_s`` ago; None: it is forgotten."""
        state = self._workers.get(worker)
        return None if state is None else state.place

    def address(self, worker: str) -> str | None:
        """Where a worker that the API server shows listens, as it shows or the worker tells; None: unknown."""
        state = self._workers.get(worker)
        if state is None or state.gone:
            return None
        address: str | None = state.place.address or state.lasting("address")
        return address

    def view(self, worker: str, now_s: float) -> WorkerView | None:
        """What is believed of one worker; None: the API server does not show it at present."""
        state = self._workers.get(worker)
        return None if state is None or state.gone else self._view(state, now_s=now_s)

    def asleep(self, worker: str) -> bool:
        """Whether a worker said last that it sleeps."""
        state = self._workers.get(worker)
        return state is not None and bool(state.lasting("asleep"))

    def of_model(self, model: ObjectKey) -> list[str]:
        """Ids of the model's workers that the API server shows, or showed lately, in their order."""
        return sorted(self._of_model.get(model, ()))

    def times(self, worker: str, now_s: float) -> ReportTimes | None:
        """When what ``view`` tells was observed; None: it is forgotten."""
        state = self._workers.get(worker)
        return None if state is None else state.times(since_s=now_s - self._settings.report_timeout_s)

    def _shown(self, model: ObjectKey) -> Iterable[WorkerState]:
        states = (self._workers[worker] for worker in self._of_model.get(model, ()))
        return (state for state in states if not state.gone)

    def _role_load(
        self, role: str, states: Sequence[WorkerState], reporting: "Sequence[_Told]", *, now_s: float
    ) -> RoleLoad:
        # What others have to do says nothing of one that has just come: counted as one of them, it would double the
        # load for the second until its first scrape, and bring a replica that nobody needs.
        known = [state for state in states if not self._just_came(state, now_s=now_s)]
        states = known if reporting else states

        def covered(told: Sequence[Any]) -> bool:
            """Whether at least half tell: fewer say nothing of the role, and unknown is not 0."""
            return bool(told) and 2 * len(told) >= len(reporting)

        def total(values: Sequence[float | None]) -> float | None:
            told = [value for value in values if value is not None]
            if not covered(told):
                return None
            if len(told) == len(reporting):
                return sum(told)
            # Those that report and leave this out have as much to do as the others; but for new ones, see above.
            untold = sum(value is None and not each.is_new for value, each in zip(values, reporting, strict=True))
            return sum(told) * (1 + untold / len(told))

        def figure(values: Sequence[int | None]) -> int | None:
            value = total(values)
            return None if value is None else round(value)

        def p99_ms(told: Sequence[BucketGrowth | None]) -> float | None:
            growths = [growth for growth in told if growth is not None]
            seconds = quantile_s(growths, _P99) if covered(growths) else None
            return None if seconds is None else seconds * _MS_PER_S

        usages = [each.kv_usage_ratio for each in reporting if each.kv_usage_ratio is not None]
        reuses = [each.reuse for each in reporting if each.reuse is not None]
        return RoleLoad(
            role=role,
            workers=len(states),
            reporting=len(reporting),
            waiting=figure([each.waiting for each in reporting]),
            running=figure([each.running for each in reporting]),
            queued_tokens=figure([each.queued_tokens for each in reporting]),
            kv_usage_ratio=sum(usages) / len(usages) if covered(usages) else None,
            requests_per_s=total([each.requests_per_s for each in reporting]),
            prompt_tokens_per_s=total([each.prompt_tokens_per_s for each in reporting]),
            generation_tokens_per_s=total([each.generation_tokens_per_s for each in reporting]),
            preemptions_per_s=total([each.preemptions_per_s for each in reporting]),
            prefix_hit_ratio=_hit_ratio(reuses) if covered(reuses) else None,
            ttft_p99_ms=p99_ms([each.ttft for each in reporting]),
            tpot_p99_ms=p99_ms([each.tpot for each in reporting]),
            age_s=max((now_s - each.at_s for each in reporting), default=None),
            product=_usual(state.place.product for state in states),
        )

    def _just_came(self, state: WorkerState, *, now_s: float) -> bool:
        """Whether it became Ready less than a report's time-out ago and was not heard yet."""
        if state.at_s > -inf:
            return False
        if state.awaited_since_s is None:
            state.awaited_since_s = now_s
        return now_s - state.awaited_since_s <= self._settings.report_timeout_s

    def _is_new(self, state: WorkerState, now_s: float) -> bool:
        """Whether it was heard first less than a report's time-out ago."""
        return now_s - state.heard_since_s <= self._settings.report_timeout_s

    def _view(self, state: WorkerState, *, now_s: float) -> WorkerView:
        place = state.place
        since_s = now_s - self._settings.report_timeout_s
        passing: Callable[[str], Any] = lambda name: state.passing(name, since_s=since_s)  # noqa: E731 - said six times
        free, usage = state.kv_pool(since_s=since_s)
        age_s = None if state.at_s == -inf else max(0.0, now_s - state.at_s)
        reporting = state.at_s >= since_s
        profile = self._book.find(place.product, place.model_id, place.gpus)
        return WorkerView(
            worker=place.worker,
            model=place.model,
            role=place.role,
            node=place.node,
            address=place.address or state.lasting("address"),
            ready=place.ready,
            reporting=reporting,
            age_s=age_s,
            confidence_ratio=self._confidence(age_s),
            waiting=passing("waiting"),
            running=passing("running"),
            queued_tokens=passing("queued_tokens"),
            batch_size=passing("batch_size"),
            kv_blocks_total=state.lasting("kv_blocks_total"),
            kv_blocks_free=free,
            kv_usage_ratio=usage,
            block_size_tokens=state.lasting("block_size_tokens"),
            gpu_utilization_ratio=passing("gpu_utilization_ratio"),
            hbm_used_bytes=passing("hbm_used_bytes"),
            prefix_hit_ratio=chance_of_reuse(state, since_s=since_s),
            requests_per_s=state.rate_per_s("finished_requests", since_s=since_s),
            draining=bool(state.lasting("draining")),
            asleep=bool(state.lasting("asleep")),
            capabilities=tuple(state.lasting("capabilities") or ()),
            cache_value_ms=cache_value_ms(
                state, profile, since_s=since_s, unknown_reuse_ratio=self._settings.unknown_reuse_ratio
            ),
            incarnation=state.incarnation,
            adapters=state.lasting("adapters"),
            cpu_tier_free_bytes=passing("cpu_tier_free_bytes"),
            ssd_tier_free_bytes=passing("ssd_tier_free_bytes"),
            transfer_domain=state.lasting("transfer_domain"),
        )

    def _confidence(self, age_s: float | None) -> float:
        """1 up to one interval, then falling evenly to 0 at the time-out."""
        if age_s is None:
            return 0.0
        interval_s, timeout_s = self._settings.report_interval_s, self._settings.report_timeout_s
        if age_s <= interval_s:
            return 1.0
        if age_s >= timeout_s:
            return 0.0
        return (timeout_s - age_s) / (timeout_s - interval_s)


class _Told(NamedTuple):
    """What one reporting worker says of its load."""

    at_s: float
    is_new: bool
    waiting: int | None
    running: int | None
    queued_tokens: int | None
    kv_usage_ratio: float | None
    requests_per_s: float | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    preemptions_per_s: float | None
    reuse: tuple[float, float] | None
    ttft: BucketGrowth | None
    tpot: BucketGrowth | None


def _told(state: WorkerState, *, since_s: float, is_new: bool) -> _Told:
    return _Told(
        state.at_s,
        is_new,
        state.passing("waiting", since_s=since_s),
        state.passing("running", since_s=since_s),
        state.passing("queued_tokens", since_s=since_s),
        state.kv_pool(since_s=since_s)[1],
        state.rate_per_s("finished_requests", since_s=since_s),
        state.rate_per_s("prompt_tokens", since_s=since_s),
        state.rate_per_s("generation_tokens", since_s=since_s),
        state.rate_per_s("preemptions", since_s=since_s),
        _reuse(state, since_s=since_s),
        state.buckets("ttft", since_s=since_s),
        state.buckets("tpot", since_s=since_s),
    )


def _usual(products: Iterable[str | None]) -> str | None:
    """What most have, ties by name; None where nobody's is known."""
    counts = Counter(product for product in products if product is not None)
    return min(counts, key=lambda product: (-counts[product], product), default=None)


def _reuse(state: WorkerState, *, since_s: float) -> tuple[float, float] | None:
    """Tokens that were found and those that were asked for in the window; None: not both are told."""
    hit, queried = (state.increase(f"prefix_{name}_tokens", since_s=since_s) for name in ("hit", "queried"))
    return None if hit is None or queried is None else (hit, queried)


def _hit_ratio(reuses: Sequence[tuple[float, float]]) -> float | None:
    """Of all together; None where nothing was asked for: 0 of 0 says nothing (ai-dynamo/dynamo#6985)."""
    hit, queried = (sum(part) for part in zip(*reuses, strict=True))
    return min(1.0, hit / queried) if queried else None
