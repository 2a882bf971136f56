"""Waiting for what other processes do: for e2e only. Everything below e2e has a fake clock and never waits."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["eventually"]

T = TypeVar("T")


def eventually(fn: Callable[[], T], timeout_s: float, what: str, *, every_s: float = 0.1) -> T:
    """Call until the answer is truthy and return it. An AssertionError counts as "not yet".

    Raises: AssertionError after ``timeout_s``, with the last answer or the last assertion.
    """
    end = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            if answer := fn():
                return answer
            last = answer
        except AssertionError as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; last: {last}")
        time.sleep(every_s)
