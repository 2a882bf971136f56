"""How many replicas: each signal, each thing that holds back, and what is said."""

from dataclasses import replace
from itertools import pairwise

import pytest

from kvaware_engine import (
    MOST_REPLICAS,
    HardwareProfile,
    ObjectKey,
    ProfileOrigin,
    Reason,
    Scaler,
    ScalingPlan,
    ScalingReason,
    ScalingRequest,
    ScalingRules,
    ScalingSettings,
)
from kvaware_testing.worker_builders import MODEL, ROOMY, hardware, role_load, room, silent_load, wanting

POLL_S = 10.0
AT_ONCE = ScalingRules(up_window_s=0, down_window_s=0, up_step=100, down_step=100)
"""Windows and steps out of the way."""
QUEUE = role_load(waiting=40, running=1, requests_per_s=1.0, prompt_tokens_per_s=100, generation_tokens_per_s=10)
"""A replica with one slot, 40 requests before it: 40 s at one a second."""


def scaler(*, profile: HardwareProfile | None = None, settings: ScalingSettings | None = None) -> Scaler:
    """Started long ago."""
    return Scaler(settings, {"test": profile or hardware()}, now_s=-1e6)


def plan(request: ScalingRequest, *, on: Scaler | None = None, now_s: float = 0.0) -> ScalingPlan:
    """One look at the role."""
    return (on or scaler()).plan(request, now_s=now_s)


def watch(request: ScalingRequest, seconds: float, *, on: Scaler, from_s: float = 0.0) -> ScalingPlan:
    """Poll the same for so long, without carrying anything out."""
    answer = on.plan(request, now_s=from_s)
    for poll in range(1, round(seconds / POLL_S) + 1):
        answer = on.plan(request, now_s=from_s + poll * POLL_S)
    return answer


def decoding(tokens_per_s: float, **told: object) -> object:
    """Answers only: a replica of ``hardware()`` does 533 of them a second."""
    return role_load(prompt_tokens_per_s=0, generation_tokens_per_s=tokens_per_s, requests_per_s=1, **told)


# --- signals


def test_replicas_rise_with_the_queue_though_running_is_capped_by_the_servers_slots():
    """defilantech/LLMKube#482: running stayed at 1 of 1 and it never grew. 1 * (1 + 40 / (1/s * 60 s)) = 1.67 → 2."""
    rules = replace(AT_ONCE, ttft_ms=500)
    small = plan(wanting(replace(QUEUE, ttft_p99_ms=40_000), rules=rules, headroom=ROOMY))
    assert (small.target, small.desired, small.terms["queue_replicas"]) == (2, 2, pytest.approx(1.667, abs=0.001))
    assert small.reason is ScalingReason.QUEUE_GROWS
    large = plan(wanting(replace(QUEUE, waiting=240), rules=rules, headroom=ROOMY))
    assert (large.target, large.terms["queue_replicas"]) == (5, 5)  # 1 + 240/60
    assert "240 requests wait" in large.message


def test_a_queue_of_which_none_finishes_asks_for_replicas_too():
    """Nothing tells how fast it moves: one replica for eight that wait. 1 + 40/8."""
    stuck = replace(QUEUE, requests_per_s=0.0, prompt_tokens_per_s=0.0, generation_tokens_per_s=0.0)
    answer = plan(wanting(stuck, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, "40 requests wait, and none finishes" in answer.message) == (6, True)
    untold = plan(wanting(replace(stuck, requests_per_s=None), rules=AT_ONCE, headroom=ROOMY))
    assert (untold.target, "how many finish is not told" in untold.message) == (6, True)


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(replace(QUEUE, waiting=1), id="one waits per replica: it is taken in at the next step"),
        pytest.param(replace(QUEUE, waiting=4), id="4 s, less than the 5 s that are allowed without an objective"),
    ],
)
def test_a_short_queue_asks_for_nothing(load):
    """Else every burst would add a replica."""
    assert plan(wanting(load, rules=AT_ONCE, headroom=ROOMY)).reason is not ScalingReason.QUEUE_GROWS


def test_a_queue_that_gets_shorter_by_itself_asks_for_nothing():
    """From 100 to 40 in 30 s: the rest is gone in 20 s."""
    on = scaler()
    for second, waiting in [(0, 100), (10, 80), (20, 60)]:
        on.plan(wanting(replace(QUEUE, waiting=waiting), rules=AT_ONCE), now_s=second)
    answer = on.plan(wanting(replace(QUEUE, waiting=40), rules=AT_ONCE), now_s=30)
    assert "queue_replicas" not in answer.terms
    assert answer.target == 1


def test_a_queue_that_left_with_its_servers_did_not_get_shorter():
    """50 wait at each of 4 servers; two are gone: 100 are fewer than 200, and nothing moved."""
    on = scaler()
    for second, workers in [(0, 4), (10, 4), (20, 4), (30, 2)]:
        load = role_load(workers=workers, waiting=50 * workers, running=8 * workers)
        answer = on.plan(wanting(load, replicas=workers, rules=AT_ONCE, headroom=ROOMY), now_s=second)
    assert answer.reason is ScalingReason.QUEUE_GROWS
    # and those that stay may drain theirs: from 100 to 40 in 20 s
    for second, waiting in [(40, 70), (50, 40)]:
        load = role_load(workers=2, waiting=waiting, running=16)
        answer = on.plan(wanting(load, replicas=2, rules=AT_ONCE, headroom=ROOMY), now_s=second)
    assert "queue_replicas" not in answer.terms


def test_where_the_maximum_allows_fewer_than_asked_for_the_message_says_so():
    """Else "8 asked for, 3 there; 0 of 1 more fit" leaves open why only one is tried."""
    load = role_load(workers=3, waiting=40, running=24)
    answer = plan(wanting(load, replicas=3, at_most=4, rules=AT_ONCE, headroom=room(0, asked=1)))
    assert (answer.target, answer.desired, answer.reason) == (3, 4, ScalingReason.HBM_CONSTRAINED)
    assert "8 replicas asked for, 3 there; 4 is the maximum; 0 of 1 more fit" in answer.message


def test_token_rates_above_capacity_ask_for_replicas():
    """1,400 answer tokens/s at 533 each: 2.6 → 3."""
    answer = plan(wanting(decoding(1400), rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.reason) == (3, ScalingReason.CAPACITY)
    assert answer.message == "1400 tokens/s come, a replica does 533: 3 replicas asked for, 1 there"


def test_full_kv_pools_ask_for_replicas():
    """3 * 0.99 / 0.85 = 3.5 → 4."""
    answer = plan(wanting(role_load(workers=3, kv_usage_ratio=0.99), replicas=3, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.reason) == (4, ScalingReason.KV_PRESSURE)


def test_preemptions_ask_for_one_more():
    """Above 0.1 a second and replica requests lose their blocks and are computed again."""
    load = role_load(workers=2, kv_usage_ratio=0.8, preemptions_per_s=0.3)
    answer = plan(wanting(load, replicas=2, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.reason) == (3, ScalingReason.KV_PRESSURE)


@pytest.mark.parametrize(
    ("told", "rules"),
    [
        pytest.param({"ttft_p99_ms": 600}, {"ttft_ms": 500}, id="TTFT"),
        pytest.param({"tpot_p99_ms": 60}, {"tpot_ms": 50}, id="TPOT"),
    ],
)
def test_a_missed_objective_under_load_asks_for_replicas(told, rules):
    """5 * 600/500 = 6: as much more as it is missed by."""
    load = decoding(100, workers=5, running=40, **told)
    answer = plan(wanting(load, replicas=5, rules=replace(AT_ONCE, **rules), headroom=ROOMY))
    assert (answer.target, answer.reason) == (6, ScalingReason.OBJECTIVE_MISSED)


def test_a_missed_objective_of_replicas_with_little_to_do_asks_for_nothing():
    """3 requests on each replica: more would not make a prompt shorter, and all up to the maximum would come."""
    load = decoding(100, workers=5, running=15, ttft_p99_ms=60_000)
    answer = plan(wanting(load, replicas=5, rules=replace(AT_ONCE, ttft_ms=500), headroom=ROOMY))
    assert answer.target <= 5


@pytest.mark.parametrize(
    ("role", "told"),
    [
        pytest.param("prefill", {"tpot_p99_ms": 999}, id="a prefill worker has no time per output token"),
        pytest.param("decode", {"ttft_p99_ms": 9999}, id="a decode worker no first token"),
    ],
)
def test_a_role_answers_for_its_own_objective_only(role, told):
    """The other role's latency is not mended by it."""
    load = role_load(role, running=40, **told)
    rules = replace(AT_ONCE, ttft_ms=500, tpot_ms=50)
    assert "objective_replicas" not in plan(wanting(load, role=role, rules=rules)).terms


def test_without_token_rates_what_runs_tells_the_load():
    """Heartbeats count nothing. 48 requests in batches of 20 * 0.8: 3 replicas; none: the minimum."""
    told = {"prompt_tokens_per_s": None, "generation_tokens_per_s": None, "requests_per_s": None}
    busy = plan(wanting(role_load(running=48, **told), rules=AT_ONCE, headroom=ROOMY))
    assert (busy.target, busy.reason) == (3, ScalingReason.CAPACITY)
    idle = plan(wanting(role_load(workers=3, **told), replicas=3, rules=AT_ONCE))
    assert (idle.target, idle.reason) == (1, ScalingReason.LESS_LOAD)


def test_a_queue_alone_can_only_ask_for_more():
    """Nobody tells what the replicas do: none is taken away."""
    told = dict.fromkeys(("prompt_tokens_per_s", "generation_tokens_per_s", "requests_per_s", "running"))
    quiet = plan(wanting(role_load(workers=3, **told), replicas=3, rules=AT_ONCE))
    assert (quiet.target, quiet.reason) == (3, ScalingReason.LOAD_FITS)
    queue = plan(wanting(role_load(workers=3, **(told | {"waiting": 16})), replicas=3, rules=AT_ONCE, headroom=ROOMY))
    assert queue.target == 5  # 3 + 16/8


# --- unknown loads and idle ones


def test_traffic_that_stopped_scales_down_after_its_window_and_silence_does_not():
    """ai-dynamo/dynamo#6985: seven replicas for ever, since 0/0 skipped each round. One step a minute, 300 s first."""
    rules = ScalingRules(down_window_s=300)
    on, replicas, changes = scaler(), 7, []
    on.plan(wanting(decoding(3000, workers=7), replicas=7, rules=rules), now_s=0)  # 5.6 replicas' worth
    for second in range(10, 1210, 10):
        answer = on.plan(wanting(role_load(workers=replicas), replicas=replicas, rules=rules), now_s=second)
        if answer.target != replicas:
            changes.append((second, answer.target, answer.reason))
            replicas = answer.target
    assert replicas == 1
    assert changes[0] == (310, 6, ScalingReason.LESS_LOAD)
    assert [later - earlier for (earlier, *_), (later, *_) in pairwise(changes)] == [60 + 10] * 5

    silent = watch(wanting(silent_load(workers=7), replicas=7, rules=rules), 1200, on=scaler())
    assert (silent.target, silent.desired, silent.reason) == (7, None, ScalingReason.LOAD_UNKNOWN)


@pytest.mark.parametrize(
    ("load", "says"),
    [
        pytest.param(None, "the load is not known", id="the extender does not answer"),
        pytest.param(silent_load(workers=2), "0 of 2 workers report", id="nobody reports"),
        pytest.param(role_load(workers=5, reporting=2, waiting=99), "2 of 5 workers report", id="less than half"),
        pytest.param(role_load(workers=0), "no worker is Ready", id="none is Ready"),
    ],
)
def test_an_unknown_load_holds(load, says):
    """No answer is not a load of 0, and a few are not all."""
    answer = plan(wanting(load, replicas=3, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.desired, answer.reason) == (3, None, ScalingReason.LOAD_UNKNOWN)
    assert says in answer.message


def test_time_without_an_answer_is_no_time_with_little_load():
    """250 s idle, then 60 s of silence: the window of 300 s begins again when the silence ends."""
    on = scaler()
    idle = wanting(role_load(workers=3), replicas=3)
    watch(idle, 250, on=on)
    watch(wanting(None, replicas=3), 50, on=on, from_s=260)
    assert watch(idle, 290, on=on, from_s=320).target == 3  # until 610 s, 300 s after the last silence
    assert watch(idle, 20, on=on, from_s=620).target == 2


# --- windows, margin, steps


def test_an_up_window_waits_for_the_lowest_that_was_asked_for():
    """60 s: a dip to 2 replicas' worth inside it holds the 4 back."""
    rules = replace(AT_ONCE, up_window_s=60)
    on = scaler()
    early = watch(wanting(decoding(2000), rules=rules, headroom=ROOMY), 50, on=on)
    assert (early.target, early.desired, early.reason) == (1, 1, ScalingReason.WAITS_FOR_WINDOW)
    on.plan(wanting(decoding(1000), rules=rules, headroom=ROOMY), now_s=60)
    assert on.plan(wanting(decoding(2000), rules=rules, headroom=ROOMY), now_s=70).target == 2  # 1000/533 = 1.9
    assert watch(wanting(decoding(2000), rules=rules, headroom=ROOMY), 60, on=on, from_s=80).target == 4  # 3.75


def test_a_down_window_keeps_the_highest_that_was_asked_for():
    """4 are needed until 300 s, 2.4 at 310 s (with the margin 3), then none: each holds for 300 s more."""
    rules = replace(AT_ONCE, down_window_s=300)
    on = scaler()
    watch(wanting(decoding(1900, workers=4), replicas=4, rules=rules), 300, on=on)
    on.plan(wanting(decoding(1300, workers=4), replicas=4, rules=rules), now_s=310)
    held = watch(wanting(role_load(workers=4), replicas=4, rules=rules), 280, on=on, from_s=320)
    assert (held.target, held.desired, held.reason) == (4, 4, ScalingReason.WAITS_FOR_WINDOW)
    assert on.plan(wanting(role_load(workers=4), replicas=4, rules=rules), now_s=610).target == 3
    assert watch(wanting(role_load(workers=3), replicas=3, rules=rules), 60, on=on, from_s=620).target == 1


def test_nothing_is_scaled_down_before_one_full_window_after_the_start():
    """What was asked for before the start is not known; scaling up does not wait."""
    on = Scaler(None, {"test": hardware()}, now_s=0)
    early = watch(wanting(role_load(workers=3), replicas=3), 290, on=on)
    assert (early.target, early.desired, early.reason) == (3, 3, ScalingReason.AFTER_RESTART)
    assert "another 10 s" in early.message
    assert on.plan(wanting(role_load(workers=3), replicas=3), now_s=300).target == 2
    fresh = Scaler(None, {"test": hardware()}, now_s=0)
    assert fresh.plan(wanting(decoding(1000), headroom=ROOMY), now_s=1).target == 2


def test_a_role_that_appears_later_is_watched_for_a_full_window_too():
    """Its history begins with it, not with the process."""
    on = scaler()
    assert watch(wanting(role_load(workers=3), replicas=3), 290, on=on).reason is ScalingReason.AFTER_RESTART


def test_a_forgotten_model_begins_anew():
    """The same name again is another model."""
    on = scaler()
    watch(wanting(role_load(workers=3), replicas=3), 300, on=on)
    on.forget(MODEL)
    on.forget(ObjectKey("never", "seen"))
    assert on.plan(wanting(role_load(workers=3), replicas=3), now_s=310).target == 3


@pytest.mark.parametrize(
    ("tokens_per_s", "target"),
    [
        pytest.param(1060, 2, id="1.99 replicas stay 2"),
        pytest.param(1070, 3, id="2.01 are 3"),
        pytest.param(460, 2, id="0.863: above 0.85, so that 2 stay"),
        pytest.param(450, 1, id="0.844: 1 would do, with 15 % left"),
    ],
)
def test_down_needs_a_margin_that_up_does_not(tokens_per_s, target):
    """533 tokens/s per replica; 2 are there."""
    answer = plan(wanting(decoding(tokens_per_s, workers=2), replicas=2, rules=AT_ONCE, headroom=ROOMY))
    assert answer.target == target


def test_steps_are_limited():
    """7.5 asked for: 4 at a time, up to 5; down by one."""
    up = plan(wanting(decoding(4000), headroom=ROOMY))
    assert (up.target, up.desired) == (5, 8)
    down = plan(wanting(role_load(workers=6), replicas=6, rules=ScalingRules(down_window_s=0)))
    assert (down.target, down.desired, down.reason) == (5, 1, ScalingReason.LESS_LOAD)


def test_steps_down_are_a_minute_apart():
    """Each shows in the rates before the next."""
    on, rules = scaler(), ScalingRules(down_window_s=0)
    assert on.plan(wanting(role_load(workers=6), replicas=6, rules=rules), now_s=0).target == 5
    waiting = on.plan(wanting(role_load(workers=5), replicas=5, rules=rules), now_s=10)
    assert (waiting.target, waiting.desired, waiting.reason) == (5, 1, ScalingReason.LESS_LOAD)
    assert on.plan(wanting(role_load(workers=5), replicas=5, rules=rules), now_s=70).target == 4


# --- bounds


@pytest.mark.parametrize(
    ("replicas", "load", "target", "reason"),
    [
        pytest.param(1, decoding(100), 3, ScalingReason.BELOW_MINIMUM, id="somebody set 1 of at least 3"),
        pytest.param(0, role_load(workers=0), 3, ScalingReason.BELOW_MINIMUM, id="somebody set 0"),
        pytest.param(1, None, 3, ScalingReason.BELOW_MINIMUM, id="too few, and the load is not known"),
        pytest.param(9, decoding(100, workers=9), 6, ScalingReason.ABOVE_MAXIMUM, id="too many"),
        pytest.param(9, None, 6, ScalingReason.ABOVE_MAXIMUM, id="too many, and the load is not known"),
        pytest.param(6, decoding(9000, workers=6), 6, ScalingReason.AT_MAXIMUM, id="more wanted than the maximum"),
        pytest.param(5, decoding(9000, workers=5), 6, ScalingReason.CAPACITY, id="up to the maximum"),
        pytest.param(3, role_load(workers=3), 3, ScalingReason.AT_MINIMUM, id="fewer would do than the minimum"),
    ],
)
def test_replicas_are_brought_between_minimum_and_maximum(replicas, load, target, reason):
    """3 to 6, whatever somebody set."""
    request = wanting(load, replicas=replicas, at_least=3, at_most=6, rules=AT_ONCE, headroom=ROOMY)
    answer = plan(request)
    assert (answer.target, answer.reason) == (target, reason)
    assert answer.desired is None or 3 <= answer.desired <= 6


def test_more_load_than_the_minimum_goes_beyond_it_at_once():
    """Below the minimum and busy: what the load asks for holds."""
    answer = plan(wanting(decoding(2000), at_least=2, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.reason) == (4, ScalingReason.CAPACITY)


def test_a_minimum_above_the_maximum_holds_and_says_so():
    """By an object that is older than the rule against it."""
    answer = plan(wanting(decoding(9000), replicas=4, at_least=5, at_most=2, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.desired, answer.reason) == (4, None, ScalingReason.INVALID_BOUNDS)
    assert answer.message == "replicas.min is 5, above replicas.max, 2: the number stays at 4"


# --- what holds back


def test_no_replica_is_added_while_one_cannot_be_scheduled():
    """More Pending pods would help nobody; scaling down goes on."""
    answer = plan(wanting(decoding(2000), unschedulable_pods=1, rules=AT_ONCE, headroom=ROOMY))
    assert (answer.target, answer.desired, answer.reason) == (1, 4, ScalingReason.REPLICA_UNSCHEDULABLE)
    assert answer.message.endswith("1 pod cannot be scheduled")
    less = plan(wanting(role_load(workers=2), replicas=3, ready=2, unschedulable_pods=1, rules=AT_ONCE))
    assert less.target == 1


def test_no_replica_is_added_while_those_added_last_are_starting():
    """They take over what waits; asking again each poll would add one per poll for the same queue."""
    on = scaler()
    assert on.plan(wanting(QUEUE, rules=AT_ONCE, headroom=ROOMY), now_s=0).target == 2
    answer = on.plan(wanting(replace(QUEUE, waiting=90), replicas=2, ready=1, headroom=ROOMY), now_s=10)
    assert (answer.target, answer.reason) == (2, ScalingReason.REPLICAS_STARTING)
    assert answer.message.endswith("1 of 2 are Ready, the last ones are starting")
    ready = on.plan(wanting(replace(QUEUE, waiting=190, workers=2, reporting=2), replicas=2, headroom=ROOMY), now_s=20)
    assert ready.target > 2


def test_a_replica_that_never_becomes_ready_does_not_hold_back_for_ever():
    """A crash loop: after start_grace_s, 600 s, more may come, and one of two makes up for the one that does not."""
    on = scaler()
    on.plan(wanting(QUEUE, headroom=ROOMY), now_s=0)
    stuck = wanting(replace(QUEUE, waiting=120), replicas=2, ready=1, rules=AT_ONCE, headroom=ROOMY)
    assert watch(stuck, 590, on=on, from_s=10).reason is ScalingReason.REPLICAS_STARTING
    answer = on.plan(stuck, now_s=610)
    assert (answer.target, answer.reason) == (4, ScalingReason.QUEUE_GROWS)  # 1 + 120/60 serve, and the stuck one
    assert (answer.terms["stuck_replicas"], "1 of 2 do not become Ready" in answer.message) == (1, True)


def test_more_of_what_fails_is_not_added():
    """Two of three never become Ready: the fault is the workload's, and nothing is made up for."""
    on = scaler()
    on.plan(wanting(decoding(300), replicas=1), now_s=0)
    broken = wanting(decoding(300), replicas=3, ready=1, rules=AT_ONCE, headroom=ROOMY)
    answer = watch(broken, 3600, on=on, from_s=10)
    assert answer.target <= 3
    assert "stuck_replicas" not in answer.terms


def test_a_moment_of_not_being_ready_adds_nothing():
    """A probe failed once; the load fits."""
    on = scaler()
    watch(wanting(decoding(900, workers=2), replicas=2, headroom=ROOMY), 60, on=on)
    blip = on.plan(wanting(decoding(800), replicas=2, ready=1, headroom=ROOMY), now_s=70)
    assert (blip.target, blip.reason) == (2, ScalingReason.LOAD_FITS)


def test_a_plan_that_wants_more_first_asks_whether_they_fit():
    """Nothing is changed before the answer; the same moment with the answer changes nothing else."""
    on = scaler()
    question = on.plan(wanting(decoding(2000), rules=AT_ONCE), now_s=5)
    assert (question.target, question.desired, question.ask_headroom) == (1, 4, 3)
    assert question.reason is ScalingReason.CAPACITY
    answer = on.plan(wanting(decoding(2000), rules=AT_ONCE, headroom=room(3, asked=3)), now_s=5)
    assert (answer.target, answer.ask_headroom, answer.hbm_constrained) == (4, 0, False)


def test_no_more_is_asked_at_once_than_the_extender_answers():
    """A minimum of 200 is reached in rounds: a question for 199 would be refused, and nothing would ever be added."""
    on = scaler()
    question = on.plan(wanting(decoding(0), at_least=200, at_most=300), now_s=5)
    assert (question.target, question.ask_headroom) == (1, MOST_REPLICAS)
    fits = room(MOST_REPLICAS, asked=MOST_REPLICAS)
    answer = on.plan(wanting(decoding(0), at_least=200, at_most=300, headroom=fits), now_s=5)
    assert (answer.target, answer.ask_headroom, answer.hbm_constrained) == (1 + MOST_REPLICAS, 0, False)


@pytest.mark.parametrize(
    "lies",
    [
        pytest.param({"prompt_tokens_per_s": 1e298, "requests_per_s": 0.1}, id="prompts beyond every number"),
        pytest.param({"prompt_tokens_per_s": 1e300, "requests_per_s": 1e-300}, id="a prompt of infinite length"),
        pytest.param({"generation_tokens_per_s": 1e308}, id="answers beyond every number"),
        pytest.param({"waiting": 10**9, "requests_per_s": 1e-300}, id="a queue that takes for ever"),
    ],
)
@pytest.mark.parametrize("ttft_ms", [None, 500])
def test_figures_beyond_all_bounds_end_at_the_maximum(lies, ttft_ms):
    """They are a worker's own word. The search for a number that does so much work must end: it is in a loop."""
    told = replace(decoding(10), **lies)
    answer = plan(wanting(told, at_most=8, rules=replace(AT_ONCE, ttft_ms=ttft_ms, tpot_ms=50), headroom=ROOMY))
    assert answer.desired == 8
    assert answer.target <= 8


def test_only_what_fits_is_added():
    """Three are wanted, one fits."""
    few = room(1, asked=3, text="kvaware: not enough free HBM on a GPU that the pod could get")
    answer = plan(wanting(decoding(2000), rules=AT_ONCE, headroom=few))
    assert (answer.target, answer.desired, answer.reason) == (2, 4, ScalingReason.HBM_CONSTRAINED)
    assert answer.hbm_constrained
    assert answer.message.endswith("1 of 3 more fit: not enough free HBM on a GPU that the pod could get")


def test_where_none_fits_the_number_stays():
    """No Pending pods; the tenant's limit is a reason too."""
    answer = plan(wanting(decoding(2000), rules=AT_ONCE, headroom=room(0, asked=3, reason=Reason.TENANT_GPU_LIMIT)))
    assert (answer.target, answer.hbm_constrained) == (1, True)


def test_an_answer_to_an_older_question_is_used_as_far_as_it_goes():
    """One was asked for and fits; three are wanted now: one comes, and nothing is short."""
    answer = plan(wanting(decoding(2000), rules=AT_ONCE, headroom=room(1, asked=1)))
    assert (answer.target, answer.hbm_constrained) == (2, False)


def test_a_plan_is_the_same_however_often_it_is_asked_for():
    """Idempotent at one moment, in each state that the role goes through."""
    on, twin = scaler(), scaler()
    replicas = 1
    for poll in range(200):
        load = decoding(200 + 37 * (poll % 60), waiting=poll % 7, workers=replicas)
        request = wanting(load, replicas=replicas, rules=ScalingRules(down_window_s=60), headroom=ROOMY)
        first = on.plan(request, now_s=poll * POLL_S)
        assert on.plan(request, now_s=poll * POLL_S) == first
        assert twin.plan(request, now_s=poll * POLL_S) == first
        replicas = first.target


# --- what was observed beats the profile


def test_latencies_well_within_their_objectives_beat_a_profile_that_asks_for_more():
    """The profile asks for 4; TTFT and TPOT are at half their objectives and nothing waits: 1 does it."""
    rules = replace(AT_ONCE, ttft_ms=500, tpot_ms=50)
    load = decoding(2000, ttft_p99_ms=250, tpot_p99_ms=25, running=10)
    on = scaler()
    assert on.plan(wanting(load, rules=rules, headroom=ROOMY), now_s=0).target == 1
    learned = watch(wanting(load, rules=rules, headroom=ROOMY), 100, on=on, from_s=10)
    assert learned.terms["correction"] < 0.5
    doubled = decoding(4000, ttft_p99_ms=480, tpot_p99_ms=48, running=20)
    assert on.plan(wanting(doubled, rules=rules, headroom=ROOMY), now_s=120).target == 2  # twice what one did


def test_a_guess_asks_for_nothing_while_nothing_waits():
    """No figure of this GPU is known and no objective set: an empty queue is better evidence."""
    on = scaler(profile=hardware(origin=ProfileOrigin.GUESS))
    assert watch(wanting(decoding(5000), rules=AT_ONCE, headroom=ROOMY), 300, on=on).target == 1
    assert on.plan(wanting(decoding(5000, waiting=90), rules=AT_ONCE, headroom=ROOMY), now_s=310).target > 1


def test_replicas_that_stay_pressed_correct_a_profile_that_asks_for_too_few():
    """533 tokens/s are promised, 200 come out and a queue stands: each does 200, which 5 * 200 then need."""
    pressed = decoding(200, waiting=50, running=20)
    on = scaler()
    learned = watch(wanting(pressed, at_most=1), 120, on=on)
    assert learned.terms["correction"] == pytest.approx(533 / 200, rel=0.01)
    relieved = on.plan(wanting(decoding(1000, workers=5), replicas=5, rules=AT_ONCE), now_s=130)
    assert relieved.terms["capacity_replicas"] == pytest.approx(5, rel=0.01)


def test_a_scale_down_that_had_to_be_taken_back_is_not_tried_again():
    """3 → 2 at 300 tokens/s made a queue; back at 3 and as calm as before, 3 stay."""
    rules = ScalingRules(down_window_s=60)
    calm3 = wanting(decoding(300, workers=3), replicas=3, at_least=1, rules=rules, headroom=ROOMY)
    on = scaler()
    assert watch(calm3, 60, on=on).target == 2
    queued = decoding(300, workers=2, waiting=25)  # 2 * (1 + 25/60) = 2.8
    assert on.plan(wanting(queued, replicas=2, rules=rules, headroom=ROOMY), now_s=70).target == 3
    assert watch(calm3, 3600, on=on, from_s=80).target == 3
    less = wanting(decoding(200, workers=3), replicas=3, rules=rules, headroom=ROOMY)
    assert watch(less, 600, on=on, from_s=3700).target == 2  # less load is another matter


def test_what_a_fault_taught_is_forgotten_at_the_minimum():
    """A replica that hung for a while taught that each does 100 tokens/s; a quiet window later the profile holds."""
    on = scaler()
    hung = watch(wanting(decoding(107, waiting=50), at_most=1), 120, on=on)
    assert hung.terms["correction"] == pytest.approx(5, rel=0.02)  # as much as is believed: 533/107
    quiet = watch(wanting(role_load(), at_most=1), 320, on=on, from_s=130)
    assert quiet.terms["correction"] == 1


def test_a_guess_and_what_is_extrapolated_are_marked_in_the_terms():
    """For the log, and for whoever wonders."""
    measured = plan(wanting(decoding(100))).terms
    assert (measured["profile_is_guess"], measured["profile_is_extrapolated"]) == (0, 0)
    unknown = plan(wanting(decoding(100), product=None)).terms
    assert (unknown["profile_is_guess"], unknown["profile_is_extrapolated"]) == (1, 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"utilization_max_ratio": 0}, "utilization_max_ratio: expected a number above 0"),
        ({"utilization_min_ratio": 0.9}, "utilization_min_ratio: expected at most utilization_max_ratio"),
        ({"down_margin_ratio": 1}, "down_margin_ratio: expected a number below 1"),
        ({"batch_max": 0}, "batch_max"),
        ({"correction_max": 0.5}, "correction_max: expected 1 or more"),
        ({"start_grace_s": -1}, "start_grace_s: expected a number of 0 or more"),
        ({"queue_drain_s": 0}, "queue_drain_s: expected a number above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    """They are read from a file that people edit."""
    with pytest.raises(ValueError, match=message):
        ScalingSettings(**wrong)
