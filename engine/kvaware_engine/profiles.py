"""What one replica of a model does on given GPUs: milliseconds of prefill and of a decode step.

Figures are measured for a few models and GPUs; the others are derived from them (``profile_book.py``), and say so.
"""

from bisect import bisect_right
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Final

__all__ = ["FALLBACK_PROFILE", "GpuProduct", "HardwareProfile", "ProfileOrigin"]


class ProfileOrigin(StrEnum):
    """How far a profile can be believed."""

    MEASURED = "measured"
    SCALED = "scaled"
    """Derived from a measured one by model size, number of GPUs and nominal speed of the GPU."""
    GUESS = "guess"
    """The GPU or the model's size is not known: the order of magnitude at best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProduct:
    """A GPU as its vendor describes it."""

    name: str
    words: tuple[str, ...]
    """Lower-case words that all stand in the product label of such a GPU; of several matches the longest holds."""
    tflops: float
    """Dense BF16 (FP16 where there is no BF16) peak, 10^12 operations per second: prefill follows it."""
    hbm_bytes_per_s: float
    """Peak memory bandwidth: decode follows it."""

    def __post_init__(self) -> None:
        if not self.words:
            raise ValueError(f"{self.name}: expected words of a product label, got none")
        for name in ("tflops", "hbm_bytes_per_s"):
            _above_zero(self.name, name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One model server process on so many GPUs of one product."""

    product: GpuProduct
    model: str
    parameters: float
    """Of the model; of a mixture of experts those that one token uses."""
    gpus: int
    prefill_base_ms: float
    """``a`` of ``a + b·u + c·u²`` for u tokens that are not cached."""
    prefill_ms_per_token: float
    """``b``."""
    prefill_ms_per_token_squared: float
    """``c``: attention. With h tokens cached before them, u tokens cost ``c·u·(u + 2h)``."""
    decode_steps: tuple[tuple[int, float], ...]
    """Batch size and milliseconds of one step, both ascending. Between two the step is linear; beyond the last the
    last slope goes on."""
    prompt_tokens_max: int = 8192
    """Longest prompt that was measured: beyond is extrapolated."""
    origin: ProfileOrigin = ProfileOrigin.MEASURED

    def __post_init__(self) -> None:
        place = f"{self.model} on {self.gpus} {self.product.name}"
        if self.gpus < 1 or self.prompt_tokens_max < 1:
            raise ValueError(f"{place}: expected gpus and prompt_tokens_max of 1 or more")
        _above_zero(place, "parameters", self.parameters)
        prefill = (self.prefill_base_ms, self.prefill_ms_per_token, self.prefill_ms_per_token_squared)
        if not all(isfinite(each) and each >= 0 for each in prefill) or sum(prefill[1:]) <= 0:
            raise ValueError(f"{place}: expected prefill figures of 0 or more that grow with the prompt, got {prefill}")
        steps = self.decode_steps
        growing = all(one[0] < two[0] and one[1] <= two[1] for one, two in pairwise(steps))
        if not steps or steps[0][0] < 1 or not (isfinite(steps[-1][1]) and steps[0][1] > 0) or not growing:
            raise ValueError(f"{place}: expected decode steps of ascending batch and milliseconds above 0, got {steps}")

    def prefill_ms(self, uncached_tokens: float, *, cached_tokens: float = 0) -> float:
        """Time of one prompt alone on the replica; linear and quadratic terms go on beyond what was measured."""
        u = uncached_tokens
        if u <= 0:
            return 0.0
        squared = self.prefill_ms_per_token_squared * u * (u + 2 * cached_tokens)
        return self.prefill_base_ms + self.prefill_ms_per_token * u + squared

    def decode_step_ms(self, batch: float) -> float:
        """Time in which each of ``batch`` sequences gets its next token."""
        steps = self.decode_steps
        if batch <= steps[0][0] or len(steps) == 1:
            return steps[0][1]
        at = min(bisect_right(steps, batch, key=lambda step: step[0]), len(steps) - 1)
        (low, low_ms), (high, high_ms) = steps[at - 1], steps[at]
        return low_ms + (high_ms - low_ms) * (batch - low) / (high - low)

    def largest_batch(self, step_ms: float | None, *, at_most: float) -> float:
        """The largest batch whose step takes at most ``step_ms``; 1 where even that takes longer.

        None: no step is too long, and the largest measured batch holds: what lies beyond is not promised.
        """
        steps = self.decode_steps
        if step_ms is None:
            return max(1.0, min(at_most, steps[-1][0]))
        if step_ms <= steps[0][1]:
            return 1.0
        batch = float(at_most)
        for (low, low_ms), (high, high_ms) in pairwise(steps):
            last = high == steps[-1][0]
            if high_ms > low_ms and (step_ms < high_ms or last):
                batch = low + (high - low) * (step_ms - low_ms) / (high_ms - low_ms)
                break
        return max(1.0, min(batch, at_most))

    def extrapolates(self, *, prompt_tokens: float = 0, batch: float = 1) -> bool:
        """Whether an answer for this prompt and batch lies beyond what was measured, or was not measured here."""
        beyond = prompt_tokens > self.prompt_tokens_max or batch > self.decode_steps[-1][0]
        return beyond or self.origin is not ProfileOrigin.MEASURED


def _above_zero(place: str, name: str, value: float) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{place}: {name}: expected a number above 0, got {value}")


FALLBACK_PROFILE: Final = HardwareProfile(
    product=GpuProduct(name="unknown", words=("unknown",), tflops=312, hbm_bytes_per_s=2.039e12),
    model="unknown",
    parameters=70e9,
    gpus=4,
    prefill_base_ms=30.0,
    prefill_ms_per_token=0.18,
    prefill_ms_per_token_squared=1.2e-5,
    decode_steps=((1, 45.0), (8, 45.8), (32, 52.3), (64, 72.9)),
    origin=ProfileOrigin.GUESS,
)
"""Where no profiles are given: rounded from llama2-70b on 4 A100-80GB in Splitwise's published measurements."""
