"""Waiting for what other processes do: for e2e only. Everything below e2e has a fake clock and never waits."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["eventually", "stays"]

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


def stays(fn: Callable[[], object], for_s: float, what: str, *, every_s: float = 0.3) -> None:
    """Look again and again that something does not change: the one wait that takes its whole time.

    Raises: AssertionError at once when it is no longer so.
    """
    end = time.monotonic() + for_s
    while True:
        assert fn(), f"no longer so: {what}"
        if time.monotonic() >= end:
            return
        time.sleep(every_s)
