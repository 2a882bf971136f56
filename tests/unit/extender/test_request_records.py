"""The records of placements in the log of decisions, and what is counted when one is made."""

import json

import pytest

from kvaware_engine import CostTerms, Tier
from kvaware_engine.requests.words import (
    Action,
    EventType,
    EventVerdict,
    PlacementEvent,
    PlacementReason,
    RunnerUp,
)
from kvaware_extender.decision_log import DecisionLog, render
from kvaware_extender.metrics import Metrics, Verb
from kvaware_extender.placing import Placing
from kvaware_extender.request_records import NotPlaced, Placed
from kvaware_testing.builders import model
from kvaware_testing.log_fields import PROMISED
from kvaware_testing.placement_builders import LLAMA, demand, option, placement, refusal

TERMS = CostTerms(
    compute_wait=30.0,
    cache_access=182.0,
    migration=5.0,
    memory_pressure=0.5,
    network=2.0,
    risk=1.0,
    locality_gain=0.25,
)


def line(record) -> dict:
    told: dict = json.loads(render(record))
    return told


def test_a_placement_is_told_under_the_promised_names_with_all_its_terms():
    chosen = option(terms=TERMS, matched_tokens=640, tier=Tier.HBM)
    made = placement(
        option=chosen,
        runner_up=RunnerUp("ml:llama-1:0", 100.0),
        reason=PlacementReason.PREFIX_RESIDENT,
        demand=demand(priority=7, session="secret"),
    )
    told = line(Placed(made, "acme/llama", 1_700_000_000.0, "trace"))
    assert list(told)[: len(PROMISED)] == PROMISED
    assert (told["request_id"], told["model_id"], told["tenant_id"]) == ("r-1", "acme/llama", "acme")
    assert (told["selected_worker"], told["candidate_workers"]) == ("ml:llama-0:0", ["ml:llama-0:0", "ml:llama-1:0"])
    assert told["schedule_reason"] == "PrefixResident"
    # compute_wait + memory_pressure, cache_access, migration + network (design, §4)
    assert told["estimated_compute_cost"] == 30.5
    assert told["estimated_cache_cost"] == 182.0
    assert told["estimated_migration_cost"] == 7.0
    assert (told["cache_location"], told["cache_state"]) == ("local_hbm", "resident")
    assert (told["gpu_hbm_available"], told["queue_length"], told["priority"]) == (2**30, 3, 7)
    terms = told["terms_ms"]
    assert terms["total"] == pytest.approx(
        sum(value for name, value in terms.items() if name not in {"total", "locality_gain"}) - terms["locality_gain"]
    )
    assert (told["runner_up"], told["runner_up_total_ms"]) == ("ml:llama-1:0", 100.0)
    assert (told["trace_id"], told["time"], told["model"]) == ("trace", "2023-11-14T22:13:20+00:00", "ml/llama")
    assert "secret" not in json.dumps(told), "a session is the client's own"


@pytest.mark.parametrize(
    ("fields", "location", "state"),
    [
        pytest.param({}, "none", "absent", id="nothing is reused"),
        pytest.param({"matched_tokens": 16, "tier": Tier.SSD}, "local_ssd", "resident", id="from its own disk"),
        pytest.param(
            {"matched_tokens": 16, "tier": Tier.CPU, "source": "ml:x:0", "action": Action.REMOTE_READ},
            "remote_cpu",
            "resident",
            id="from another worker",
        ),
    ],
)
def test_where_the_blocks_come_from(fields, location, state):
    told = line(Placed(placement(option=option(**fields)), "", 0.0, None))
    assert (told["cache_location"], told["cache_state"]) == (location, state)


def test_a_pair_names_both_workers_and_where_the_prompt_is_matched():
    prefill = option("ml:prefill:0", matched_tokens=640, tier=Tier.HBM)
    told = line(Placed(placement(option=option("ml:decode:0"), prefill=prefill), "", 0.0, None))
    assert (told["selected_worker"], told["prefill_worker"]) == ("ml:decode:0", "ml:prefill:0")
    assert told["candidate_workers"] == ["ml:decode:0", "ml:prefill:0"]
    assert (told["matched_tokens"], told["cache_location"]) == (640, "local_hbm")
    assert told["prefill_terms_ms"]["total"] == 100.0


def test_a_refusal_is_told_under_the_same_names():
    told = line(NotPlaced(refusal(PlacementReason.SATURATED, retryable=True, retry_after_s=0.25), "acme/m", 0.0, None))
    assert list(told)[: len(PROMISED)] == PROMISED
    assert (told["selected_worker"], told["schedule_reason"], told["event"]) == (None, "Saturated", "request_refused")
    assert (told["error"], told["retryable"], told["retry_after_s"]) == ("nobody can", True, 0.25)


class Decides:
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.outcome = placement()
        self.following = None
        self.ticked_s = None

    def place(self, demand, *, now_s):
        return self.outcome

    def event(self, placement_id, event, *, now_s):
        return EventVerdict.TAKEN, self.following

    def placement(self, placement_id):
        return self.outcome

    def tick(self, now_s):
        self.ticked_s = now_s


@pytest.fixture
def log(tmp_path):
    log = DecisionLog(target=str(tmp_path / "log"), capacity=100)
    log.open()
    yield log
    log.close()


def lines(log: DecisionLog, tmp_path) -> list[dict]:
    log.close()
    return [json.loads(text) for text in (tmp_path / "log").read_text().splitlines()]


def test_each_decision_is_measured_counted_and_logged_the_next_attempt_too(log, tmp_path):
    decides, metrics = Decides(), Metrics(lambda: 100.0)
    placing = Placing(decides, metrics=metrics, decisions=log)
    placing.observe_model(LLAMA, model("llama", model_id="acme/llama"))
    placing.place(demand(), now_s=100.0, trace_id="t")
    decides.following = placement(attempt=2)
    placing.event("p-1", PlacementEvent(type=EventType.REFUSED), now_s=100.0)
    decides.following = refusal(PlacementReason.TOO_MANY_REFUSALS)
    placing.event("p-1", PlacementEvent(type=EventType.REFUSED), now_s=100.0)
    decides.following = None
    placing.event("p-1", PlacementEvent(type=EventType.FINISHED), now_s=100.0)
    assert (placing.counts.placed, placing.counts.refused, placing.counts.assignment_failures) == (2, 1, 2)
    assert metrics.latency[Verb.PLACE].observed == 1
    told = lines(log, tmp_path)
    assert [each["schedule_reason"] for each in told] == ["Cold", "Cold", "TooManyRefusals"]
    assert [each["attempt"] for each in told[:2]] == [1, 2]
    assert (told[0]["model_id"], told[0]["trace_id"]) == ("acme/llama", "t")


def test_without_a_log_no_record_is_made_and_everything_is_counted():
    placing = Placing(Decides(), metrics=Metrics(lambda: 0.0), decisions=DecisionLog(target="off", capacity=1))
    placing.place(demand(), now_s=0.0)
    assert placing.counts.placed == 1


def test_a_tick_reaches_the_engine():
    decides = Decides()
    placing = Placing(decides, metrics=Metrics(lambda: 0.0), decisions=DecisionLog(target="off", capacity=1))
    placing.tick(7.0)
    assert decides.ticked_s == 7.0
