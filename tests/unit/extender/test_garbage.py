"""The garbage collector is kept out of the way, and what is cyclic is found all the same."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from kvaware_extender.garbage import FULL_EVERY_MAX_S, FULL_EVERY_S, GROWN_BYTES, LOOKS_GROWING, YOUNG_MAX, Garbage
from kvaware_testing.store_harness import FakeClock


class Ring:
    """Cyclic: only a pass of the collector ends it."""

    def __init__(self) -> None:
        self.me = self


class Process:
    peak_bytes = 10 * 2**30

    def __call__(self) -> int:
        return self.peak_bytes


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def garbage(clock: FakeClock, process: Process) -> Iterator[Garbage]:
    garbage = Garbage(clock=clock, peak_bytes=process)
    garbage.begin()
    yield garbage
    garbage.end()


def ring() -> "weakref.ref[Ring]":
    return weakref.ref(Ring())


def test_what_lives_is_out_of_sight_and_freed_when_nobody_needs_it(garbage):
    kept = [Ring() for _ in range(10)]
    plain = type("Plain", (), {})()
    seen = weakref.ref(plain)
    garbage.look()
    assert not any(kept[0] is each for each in gc.get_objects())
    del plain
    assert seen() is None, "reference counts do not need the collector"


def test_what_is_cyclic_is_found_by_the_next_full_pass(garbage, clock):
    lost = ring()
    garbage.look()
    assert lost() is not None, "it is out of sight"
    clock.now_s += FULL_EVERY_MAX_S
    garbage.look()
    assert lost() is None


def test_many_that_are_made_and_not_freed_are_looked_at_soon(garbage):
    """A flood of bad requests whose errors are cyclic must not fill the memory for ten minutes."""
    for _ in range(LOOKS_GROWING):
        lost = [ring() for _ in range(2 * YOUNG_MAX)]
        garbage.look()
    assert not any(each() for each in lost)
    assert garbage.full_passes == 1, "the young ones alone"


def test_a_process_that_grows_is_looked_through(garbage, process):
    lost = ring()
    garbage.look()
    process.peak_bytes += process.peak_bytes // 2 + GROWN_BYTES
    garbage.look()
    assert lost() is None
    assert garbage.full_passes == 2
    garbage.look()
    assert garbage.full_passes == 2, "not again until it has grown once more"


def test_full_passes_that_find_nothing_come_less_often(garbage, clock):
    def until_next() -> float:
        began_s, passes = clock.now_s, garbage.full_passes
        while garbage.full_passes == passes:
            clock.now_s += FULL_EVERY_S / 2
            garbage.look()
        return clock.now_s - began_s

    times = [until_next() for _ in range(4)]
    assert times == sorted(times)
    assert times[-1] == FULL_EVERY_MAX_S


def test_pauses_are_measured(garbage):
    before = garbage.pauses.observed
    gc.collect()
    assert garbage.pauses.observed == before + 1


def test_afterwards_the_collector_is_as_it_was(clock, process):
    before = (gc.get_threshold(), len(gc.callbacks))
    garbage = Garbage(clock=clock, peak_bytes=process)
    garbage.begin()
    garbage.end()
    garbage.end()
    assert (gc.get_threshold(), len(gc.callbacks)) == before


def test_the_peak_of_this_process_is_plausible(clock):
    garbage = Garbage(clock=clock)
    assert 2**20 < garbage._peak_bytes() < 2**40
