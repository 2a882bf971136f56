"""Engine hashes and their places, against a dictionary."""

from random import Random

import numpy as np
import pytest

from kvaware_engine.blocks.places import RECENT, Places


def numbers(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - the same in every run


@pytest.mark.parametrize("bits", [9, 13, 64])
def test_it_is_a_dictionary(bits):
    """Few keys, so that most are told again; and many, so that all levels are in use."""
    random, places, expected = numbers(bits), Places(), {}
    for number in range(5 * RECENT):
        key = random.getrandbits(bits)
        match random.randrange(8):
            case 0 | 1 | 2:
                places.set(key, number)
                expected[key] = number
            case 3 | 4:
                run = [key, *(random.getrandbits(bits) for _ in range(5))]
                places.set_run(run, number, 2**32)
                expected |= {one: number + (at << 32) for at, one in enumerate(run)}
            case 5:
                known = random.choice(tuple(expected)) if number % 64 == 0 and expected else key
                assert places.pop(known) == expected.pop(known, None)
            case _:
                assert places.get(key) == expected.get(key)
    assert {key: places.get(key) for key in expected} == expected


def test_what_is_gone_is_forgotten_in_every_level():
    places, keys = Places(), numbers(1).sample(range(2**60), 3 * RECENT)
    for at in range(0, len(keys), 32):
        places.set_run(keys[at : at + 32], at, 1)
    places.forget(lambda values: values % np.uint64(2) == 1)
    assert len(places) == len(keys) // 2
    assert all(places.get(key) == (None if value % 2 else value) for value, key in enumerate(keys))


def test_it_takes_little_more_than_16_bytes_an_entry():
    places, keys = Places(), numbers(1).sample(range(2**62), 170_000)
    for at in range(0, len(keys), 32):
        places.set_run(keys[at : at + 32], at, 1)
    assert places.size_bytes / len(keys) < 22


def test_a_block_that_comes_and_goes_takes_no_more_each_time():
    places, random = Places(), numbers(1)
    for _ in range(6 * RECENT):
        key = random.getrandbits(64)
        places.set(key, 1)
        assert places.pop(key) == 1
    assert places.size_bytes < 1_600_000
