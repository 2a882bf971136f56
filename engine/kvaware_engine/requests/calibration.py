"""Hardware profiles corrected by what was observed: one factor for prefill, one for decode, per hardware class.

Per class (GPU product, GPUs, model) and not per worker: what a profile has wrong, all workers of the class have wrong
alike, and 200 requests over 64 workers are three each. One worker that is slower than its class shows in its queue,
and that is reported.

    log ratio += share * clip(log(observed / as the profile says) - log ratio)

In logarithms twice as slow weighs as much as twice as fast. The clip makes it a running M-estimator of location
(Huber): a request that waited for something that nobody tells moves it no more than one that was twice as slow. The
share is 1/n at first, so that the first requests count most, and later constant, so that it follows what changes.
"""

from dataclasses import replace
from math import exp, isfinite, log
from typing import Final

from kvaware_engine.profiles import HardwareProfile

__all__ = ["Calibration"]

_SHARE_MIN: Final = 1 / 64
"""It follows the last hundred requests or so: with a spread of 25 % per request it then strays by 2 %."""
_CLIP: Final = log(2)
_RATIO_MAX: Final = 8.0
"""Whatever is observed, a profile is not off by more: then something else is measured."""
_EXTRAPOLATED_SHARE: Final = 0.5
"""Weight of a request longer, or in a larger batch, than was ever measured: the profile's shape is a guess there, and
its error must not be taken for one of the speed."""
_UNCACHED_TOKENS_MIN: Final = 64
"""Shorter prefills tell more of the network than of the GPU."""
_CHANGE_MIN: Final = 0.02
"""Corrections that differ by less are not handed out: each makes the fleet price its columns again."""
_AT_ONCE: Final = 8
"""While so few were observed each may hand out a new profile, later every so manieth."""


class _Correction:
    """The logarithm of one rate's factor."""

    __slots__ = ("_weight", "log_ratio")

    def __init__(self) -> None:
        self.log_ratio = 0.0
        self._weight = 0.0

    def observe(self, observed: float, predicted: float, *, weight: float) -> None:
        self._weight += weight
        share = max(1 / max(self._weight, 1.0), _SHARE_MIN) * weight
        apart = log(observed / predicted) - self.log_ratio
        moved = self.log_ratio + share * min(_CLIP, max(-_CLIP, apart))
        self.log_ratio = min(log(_RATIO_MAX), max(-log(_RATIO_MAX), moved))


class Calibration:
    """One hardware class. ``profile`` is replaced as a whole, so that whoever reads it pays nothing for correcting."""

    __slots__ = ("_decode", "_handed_out", "_prefill", "_since", "base", "observed", "profile")

    def __init__(self, base: HardwareProfile) -> None:
        self.base = base
        """As measured or derived."""
        self.profile = base
        """As corrected. Its origin and limits stay the base's: what extrapolates goes on to say so."""
        self.observed = 0
        """Observations that counted."""
        self._prefill = _Correction()
        self._decode = _Correction()
        self._handed_out = (0.0, 0.0)
        self._since = 0

    @property
    def ratios(self) -> tuple[float, float]:
        """By how much prefill and decode take longer than the base says, as believed now."""
        return exp(self._prefill.log_ratio), exp(self._decode.log_ratio)

    def observe_prefill(self, took_ms: float, *, uncached_tokens: float, cached_tokens: float = 0) -> bool:
        """A prompt was computed.

        Args:
            took_ms: From the start of its prefill to its first token: TTFT less the wait in the queue. What is not a
                number above 0 does not count.
            uncached_tokens: That were computed, as the server told; below 64 it does not count.
            cached_tokens: Before them.
        Returns: Whether ``profile`` was replaced.
        """
        if uncached_tokens < _UNCACHED_TOKENS_MIN:
            return False
        beyond = uncached_tokens + cached_tokens > self.base.prompt_tokens_max
        predicted_ms = self.base.prefill_ms(uncached_tokens, cached_tokens=cached_tokens)
        return self._observe(self._prefill, took_ms, predicted_ms, beyond=beyond)

    def observe_decode(self, step_ms: float, *, batch: float) -> bool:
        """A request was decoded.

        Args:
            step_ms: Per token: TPOT. What is not a number above 0 does not count.
            batch: Sequences that decoded there, itself included.
        Returns: Whether ``profile`` was replaced.
        """
        beyond = batch > self.base.decode_steps[-1][0]
        return self._observe(self._decode, step_ms, self.base.decode_step_ms(batch), beyond=beyond)

    def _observe(self, correction: _Correction, observed_ms: float, predicted_ms: float, *, beyond: bool) -> bool:
        if not (isfinite(observed_ms) and observed_ms > 0):
            return False
        correction.observe(observed_ms, predicted_ms, weight=_EXTRAPOLATED_SHARE if beyond else 1.0)
        self.observed += 1
        self._since += 1
        if self._since < _AT_ONCE <= self.observed:
            return False
        now = (self._prefill.log_ratio, self._decode.log_ratio)
        if max(abs(one - other) for one, other in zip(now, self._handed_out, strict=True)) < _CHANGE_MIN:
            return False
        self._since = 0
        self._handed_out = now
        prefill, decode = self.ratios
        base = self.base
        self.profile = replace(
            base,
            prefill_base_ms=base.prefill_base_ms * prefill,
            prefill_ms_per_token=base.prefill_ms_per_token * prefill,
            prefill_ms_per_token_squared=base.prefill_ms_per_token_squared * prefill,
            decode_steps=tuple((batch, step_ms * decode) for batch, step_ms in base.decode_steps),
        )
        return True
