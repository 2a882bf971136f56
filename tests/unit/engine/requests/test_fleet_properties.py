"""Whatever comes in whatever order: reported plus reserved since, and in the end nothing stays reserved."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.ledger import Reservation
from kvaware_testing.fleet_builders import FleetAtWork
from kvaware_testing.worker_builders import WORKER, scrape

KINDS = ("reserve", "reserve", "prefilled", "progress", "end", "end", "load", "late load", "pool", "again")
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 5), st.integers(1, 4000), st.sampled_from((0, 0, 1, -7))),
    max_size=60,
)


@dataclass
class Rule:
    """The rule of design 004 in its simplest words: a list of what was reserved, and of what ended since a report."""

    live: list[Reservation] = field(default_factory=list)
    ended: list[tuple[Reservation, float]] = field(default_factory=list)
    """And when."""
    load: tuple[float, int] | None = None
    """When it was observed, and requests."""
    pool: tuple[float, int] | None = None
    """When it was observed, and used tokens."""

    def figure(self, report: tuple[float, int], amount: Callable[[Reservation], float]) -> float:
        """What is held: as reported, less what has ended since, and what was reserved since."""
        at_s, reported = report
        since = sum(amount(each) for each in self.live if each.reserved_at_s > at_s)
        left = sum(amount(each) for each, end_s in self.ended if each.reserved_at_s <= at_s < end_s)
        return reported - left + since

    def requests(self) -> float:
        assert self.load is not None
        return self.figure(self.load, lambda each: 1)

    def used_tokens(self) -> float:
        assert self.pool is not None
        return self.figure(self.pool, lambda each: each.kv_tokens)


@given(steps=STEPS)
@settings(max_examples=150, deadline=None)
def test_figures_are_what_was_reported_and_what_was_reserved_since(steps: list[tuple[str, int, int, int]]):
    """Against the rule's simplest form; and all that ends leaves nothing behind."""
    fleet, rule, now_s = FleetAtWork(WORKER), Rule(), 1.0
    fleet.takes(scrape(at_s=now_s, kv_usage_ratio=0.5, waiting=50, running=100), now_s=now_s)
    fleet.hears(at_s=now_s, kv_blocks_total=100_000)
    rule.load, rule.pool = (now_s, 150), (now_s, 800_000)
    for kind, which, amount, priority in steps:
        now_s += 0.25
        chosen = rule.live[which % len(rule.live)] if rule.live else None
        match kind:
            case "reserve":
                rule.live.append(fleet.reserve(at_s=now_s, input_tokens=amount, priority=priority))
            case "load" | "late load":
                at_s = now_s if kind == "load" else max(rule.load[0], now_s - 0.6)
                if at_s > rule.load[0]:
                    fleet.takes(scrape(at_s=at_s, waiting=which, running=100), now_s=now_s)
                    rule.load = (at_s, 100 + which)
            case "pool":
                fleet.hears(at_s=now_s, kv_blocks_free=50_000 + amount)
                rule.pool = (now_s, 16 * (50_000 - amount))
            case _ if chosen is None:
                continue
            case "prefilled":
                fleet.fleet.prefilled(chosen, now_s)
            case "progress":
                fleet.fleet.progressed(chosen, which)
            case "end":
                rule.live.remove(chosen)
                rule.ended.append((chosen, now_s))
                fleet.fleet.discharge(chosen, now_s)
            case "again":
                fleet.expect(ready=False, now_s=now_s)
                fleet.expect(now_s=now_s)
        assert fleet.figure(Figure.REQUESTS) == fleet.figure(Figure.BATCH) == max(0, rule.requests())
        assert fleet.figure(Figure.KV_FREE_TOKENS) == min(1_600_000, 1_600_000 - rule.used_tokens())
        assert fleet.figure(Figure.FREE_AT_S) < 1e6
