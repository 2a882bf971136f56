"""Whatever happens to requests in whatever order, the ledger's books agree, and nothing stays behind."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.ledger import Ending, RequestLedger, Reservation
from kvaware_engine.requests.limits import LimitRefusal, RequestLimits
from kvaware_engine.requests.settings import RequestLedgerSettings
from kvaware_engine.requests.words import RequestDemand
from kvaware_testing.builders import quota
from kvaware_testing.placement_builders import placement

SETTINGS = RequestLedgerSettings(ttl_s=10, kept_finished=5)
MODEL = ObjectKey("ml", "llama")
TENANTS = st.sampled_from(["limited", "unlimited"])
WORKERS = st.sampled_from(["w0", "w1", "w2"])
PICK = st.integers(0, 10)


class Requests(RuleBasedStateMachine):
    """Ledger and limits together, as the placer drives them, beside a plain list of what should be live."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = RequestLedger(SETTINGS, seed="k")
        self.limits = RequestLimits(SETTINGS)
        self.limits.observe_quota("q", quota("q", tenant="limited", concurrent_requests=3, requests_per_s=5))
        self.live: list[Reservation] = []
        self.ended: list[Reservation] = []
        self.incarnations = {"w0": 0, "w1": 0, "w2": 0}
        self.now_s = 0.0

    def _gone(self, gone: list[Reservation]) -> None:
        for each in gone:
            self.live.remove(each)
            self.ended.append(each)
            self.limits.release(each.tenant)

    @rule(tenant=TENANTS, request=PICK, worker=WORKERS, prefill=st.none() | WORKERS)
    def place(self, tenant: str, request: int, worker: str, prefill: str | None) -> None:
        if self.ledger.in_flight(tenant, f"r{request}") is not None:
            return
        if isinstance(self.limits.admit(tenant, tokens=10, priority=0, now_s=self.now_s), LimitRefusal):
            return
        demand = RequestDemand(request_id=f"r{request}", model=MODEL, tenant=tenant, input_tokens=1)
        placement_id = self.ledger.new_id()

        def part(on: str) -> Reservation:
            return Reservation(
                placement_id=placement_id,
                demand=demand,
                slot=0,
                worker=on,
                incarnation=str(self.incarnations[on]),
                reserved_at_s=self.now_s,
                placement=placement(),
            )

        made = part(worker)
        made.prefill = None if prefill is None else part(prefill)
        self.ledger.reserve(made)
        self.live.append(made)

    @rule(pick=PICK)
    def hear(self, pick: int) -> None:
        if self.live:
            self.ledger.renew(self.live[pick % len(self.live)], self.now_s)

    @rule(pick=PICK)
    def first_token(self, pick: int) -> None:
        if self.live:
            self.ledger.handed_over(self.live[pick % len(self.live)])

    @rule(pick=PICK, worker=WORKERS)
    def move(self, pick: int, worker: str) -> None:
        if self.live:
            made = self.live[pick % len(self.live)]
            self.ledger.move(made, slot=1, worker=worker, incarnation=str(self.incarnations[worker]))

    @rule(pick=PICK)
    def finish(self, pick: int) -> None:
        if self.live:
            made = self.live[pick % len(self.live)]
            assert self.ledger.settle(made, self.now_s)
            self._gone([made])

    @rule(pick=PICK)
    def finish_late(self, pick: int) -> None:
        if self.ended:
            assert not self.ledger.release(self.ended[pick % len(self.ended)], self.now_s)

    @rule(after_s=st.floats(0, 15))
    def time_passes(self, after_s: float) -> None:
        self.now_s += after_s
        due = [each for each in self.live if each.expires_at_s <= self.now_s]
        expired = self.ledger.expire(self.now_s)
        assert sorted(map(id, expired)) == sorted(map(id, due))
        self._gone(expired)

    @rule(worker=WORKERS)
    def restart(self, worker: str) -> None:
        self.incarnations[worker] += 1
        self._gone(self.ledger.lose(worker, self.now_s, incarnation=str(self.incarnations[worker])))

    @invariant()
    def books_agree(self) -> None:
        assert sorted(map(id, self.ledger)) == sorted(map(id, self.live))
        assert [each.expires_at_s for each in self.ledger] == sorted(each.expires_at_s for each in self.live)
        for each in self.live:
            assert self.ledger.find(each.placement_id) is each
            assert self.ledger.in_flight(each.tenant, each.request_id) is each
            assert each.ending is None
        for worker in self.incarnations:
            there = {id(each) for each in self.live if any(part.worker == worker for part in each.parts)}
            assert {id(each) for each in self.ledger.on_worker(worker)} == there
        for tenant in ("limited", "unlimited"):
            assert self.limits.in_flight(tenant) == sum(each.tenant == tenant for each in self.live)
        assert self.limits.in_flight("limited") <= 3
        kept = self.ended[-SETTINGS.kept_finished :]
        assert [self.ledger.find(each.placement_id) for each in self.ended] == [
            each if each in kept else None for each in self.ended
        ]

    def teardown(self) -> None:
        """Nothing is heard any more: everything goes."""
        self._gone(self.ledger.expire(self.now_s + 1e6))
        assert self.live == []
        assert len(self.ledger) == 0
        assert self.ledger._of_request == self.ledger._on_worker == {}
        assert self.limits._in_flight == {}
        assert {each.ending for each in self.ended} <= {Ending.SETTLED, Ending.EXPIRED, Ending.LOST}


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
