"""How long an answer is expected to be."""

from random import Random

import pytest

from kvaware_engine import ObjectKey
from kvaware_engine.requests.lengths import OutputLengths
from kvaware_engine.requests.settings import RequestLedgerSettings

MODEL = ObjectKey("ml", "llama")


def test_until_something_was_observed_the_settings_tell():
    """And after a few answers of a tenant those of all tenants do; then its own."""
    lengths = OutputLengths(RequestLedgerSettings(expected_output_tokens=300))
    assert lengths.expected(MODEL, "a") == 300
    for _ in range(8):
        lengths.observe(MODEL, "b", 50)
    assert (lengths.expected(MODEL, "a"), lengths.expected(MODEL, "b")) == (50, 50)
    for _ in range(8):
        lengths.observe(MODEL, "a", 900)
    assert (lengths.expected(MODEL, "a"), lengths.expected(MODEL, "b")) == (900, 50)
    assert lengths.expected(ObjectKey("ml", "other"), "a") == 300


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 1), (0.5, 64), (0.9, 115), (1.0, 128)])
def test_the_quantile_is_the_one_that_the_settings_name(ratio: float, expected: int):
    """Of 1 to 128, in any order."""
    lengths = OutputLengths(RequestLedgerSettings(expected_output_ratio=ratio))
    answers = list(range(1, 129))
    Random(1).shuffle(answers)  # noqa: S311 - the same numbers in every run
    for tokens in answers:
        lengths.observe(MODEL, "a", tokens)
    assert abs(lengths.expected(MODEL, "a") - expected) <= 1


def test_what_was_asked_long_ago_is_forgotten():
    """The last 128 answers count."""
    lengths = OutputLengths(RequestLedgerSettings())
    for tokens in [1000] * 500 + [10] * 128:
        lengths.observe(MODEL, "a", tokens)
    assert lengths.expected(MODEL, "a") == 10


def test_at_least_one_token_is_expected():
    """Answers of nothing, as of servers that only compute prompts."""
    lengths = OutputLengths(RequestLedgerSettings())
    for _ in range(20):
        lengths.observe(MODEL, "a", 0)
    assert lengths.expected(MODEL, "a") == 1


def test_many_tenants_do_not_take_memory_without_bound():
    """The longest unused are forgotten; the model's own stay, since every answer is one of theirs."""
    lengths = OutputLengths(RequestLedgerSettings(expected_output_tokens=300))
    for tenant in range(5000):
        for _ in range(8):
            lengths.observe(MODEL, f"t{tenant}", 50 if tenant else 900)
    assert len(lengths) == 4096
    assert lengths.expected(MODEL, "t0") == 50
