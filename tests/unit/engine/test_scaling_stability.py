"""Numbers that stay: whatever the hardware really does, a load that does not change ends changes."""

from math import sin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaware_engine import Scaler, ScalingRules
from kvaware_engine.stabilizer import AskedWindow, settled_replicas
from kvaware_testing.scaling_plant import Plant
from kvaware_testing.worker_builders import hardware

RULES = st.builds(
    ScalingRules,
    up_window_s=st.sampled_from([0.0, 30.0]),
    down_window_s=st.sampled_from([0.0, 60.0, 300.0]),
    up_step=st.sampled_from([1, 4]),
    down_step=st.sampled_from([1, 3]),
    ttft_ms=st.sampled_from([None, 100.0, 500.0, 2000.0]),  # 100 ms cannot be met: a prompt alone takes 200
    tpot_ms=st.sampled_from([None, 30.0, 100.0]),
)
BUSY = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plant(rules: ScalingRules, *, replica_per_s: float, load: object, start_s: float = 60.0, at: int = 1) -> Plant:
    """The profile says some 3 requests a second and replica; ``replica_per_s`` is the truth."""
    scaler = Scaler(None, {"test": hardware()}, now_s=0)
    return Plant(scaler, load, replica_per_s, rules=rules, at_most=24, start_s=start_s, replicas=at)  # type: ignore[arg-type]  # a callable


@BUSY
@given(
    rules=RULES,
    replica_per_s=st.sampled_from([0.5, 2.0, 3.0, 8.0]),
    share=st.floats(0, 20),
    start_s=st.sampled_from([10.0, 60.0, 300.0]),
    at=st.integers(1, 24),
)
def test_a_constant_load_converges_and_then_nothing_changes(rules, replica_per_s, share, start_s, at):
    """Two hours to find the number, then half of one without a change, and what comes is served.

    Profiles too fast and too slow, objectives that can and cannot be met, fast and slow starts.
    """
    role = plant(rules, replica_per_s=replica_per_s, load=lambda _: share * replica_per_s, start_s=start_s, at=at)
    role.run(7200)
    settled = len(role.history)
    role.run(1800)
    assert role.history[settled:] == []
    assert role.backlog < 50 or role.replicas == role.at_most
    assert role.replicas >= min(share, role.at_most) - 0.01


@BUSY
@given(
    rules=RULES.filter(lambda rules: rules.down_window_s > 0),
    replica_per_s=st.sampled_from([2.0, 3.0, 8.0]),
    share=st.floats(0.5, 12),
    period_s=st.sampled_from([37.0, 200.0, 1300.0]),
)
def test_a_load_that_moves_by_five_percent_around_any_edge_does_not_flap(rules, replica_per_s, share, period_s):
    """The edge itself may be crossed once upwards; after two hours the number is found."""

    def load(now_s: float) -> float:
        return share * replica_per_s * (1 + 0.05 * sin(6.283 * now_s / period_s))

    role = plant(rules, replica_per_s=replica_per_s, load=load)
    role.run(7200)
    settled = len(role.history)
    role.run(2600)
    later = [replicas for _, replicas in role.history[settled:]]
    assert later == sorted(later)  # never down: what goes up and down again is flapping
    assert len(later) <= 1


def test_a_load_that_doubles_and_ends_is_followed_up_and_down():
    """2 replicas' worth, 6 for an hour, then nothing: the minimum, without a change in between."""
    role = plant(
        ScalingRules(), replica_per_s=3.0, load=lambda now_s: 6.0 if now_s < 3600 else 18.0 if now_s < 7200 else 0.0
    )
    role.run(3590)
    low = role.replicas
    role.run(3600)
    high = role.replicas
    role.run(7200)
    assert 2 <= low <= 3
    assert 6 <= high <= 10
    assert role.replicas == 1
    down = [replicas for at_s, replicas in role.history if at_s > 7300]
    assert down == list(range(high - 1, 0, -1))


def test_the_first_reaction_comes_at_the_first_poll_that_shows_the_load():
    """With an up window of 0: one poll, no more."""
    role = plant(ScalingRules(), replica_per_s=3.0, load=lambda now_s: 0.3 if now_s <= 600 else 12.0)
    role.run(600)
    assert role.replicas == 1
    role.step()
    assert role.replicas > 1


@given(present=st.integers(0, 100), wanted=st.floats(0, 120), margin=st.floats(0, 0.5))
def test_a_settled_number_stays_where_it_was_put(present, wanted, margin):
    """Asked again with the same, it does not move: there is no number from which one goes up and comes back."""
    once = settled_replicas(present, least_up=wanted, most_down=wanted, margin_ratio=margin)
    assert settled_replicas(once, least_up=wanted, most_down=wanted, margin_ratio=margin) == once
    assert once >= wanted - 1e-5


@given(edge=st.integers(1, 1000), low=st.floats(0.95, 1.0), high=st.floats(1.0, 1.05))
def test_loads_within_five_percent_of_an_edge_end_on_one_number(edge, low, high):
    """15 % margin: up needs more than n, down to n at most 0.85 n, and 0.95/1.05 is 0.905."""
    number = edge
    seen = []
    for _ in range(4):
        for factor in (high, low):
            number = settled_replicas(number, least_up=edge * factor, most_down=edge * factor, margin_ratio=0.15)
            seen.append(number)
    assert len(set(seen)) == 1


@pytest.mark.parametrize("window_s", [0.0, 30.0, 300.0, 86_400.0])
def test_a_window_remembers_its_extremes_in_bounded_space(window_s):
    """A poll each second for two windows, at least an hour."""
    window = AskedWindow(window_s)
    asked = {}
    for second in range(round(max(3600, 2 * min(window_s, 3600)))):
        asked[second] = 5 + 4 * sin(second / 50)
        window.ask(asked[second], now_s=second)
    inside = [value for second, value in asked.items() if second >= max(asked) - window_s]
    around = [value for second, value in asked.items() if second >= max(asked) - window_s * 31 / 30 - 1]
    assert min(around) <= window.least <= min(inside)
    assert max(inside) <= window.most <= max(around)
    assert len(window._parts) <= 32
