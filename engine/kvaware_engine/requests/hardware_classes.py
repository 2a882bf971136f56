"""Hardware classes of a fleet: each one's profile as corrected by what was observed, and its decode steps by batch."""

from typing import Final

import numpy as np

from kvaware_engine.profile_book import ProfileBook
from kvaware_engine.profiles import HardwareProfile
from kvaware_engine.reports import WorkerPlace
from kvaware_engine.requests.calibration import Calibration
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import FloatArray

__all__ = ["HardwareClass", "HardwareClasses", "decode_figures"]

_BATCHES_KEPT: Final = 4096
"""Largest batch whose step is remembered: beyond what servers run; a report may claim more."""
_PROMPT_TOKENS: Final = 1024.0
"""Prompt by which the price of recomputing a token is taken."""


def decode_figures(profile: HardwareProfile, batch: int) -> tuple[float, float]:
    """What a worker's running batch costs one more request.

    Args:
        profile: Its hardware.
        batch: Sequences that decode there, 0 or more.
    Returns: Milliseconds until the running step has ended, on average, 0 where none runs; and milliseconds per output
        token of one more request: its own step at ``batch + 1``, and by how much that is longer than one at ``batch``
        for each of those that decode there (the batch effect of design §4).
    """
    if batch < 1:
        return 0.0, profile.decode_step_ms(1)
    now_ms, next_ms = profile.decode_step_ms(batch), profile.decode_step_ms(batch + 1)
    return now_ms / 2, next_ms + batch * (next_ms - now_ms)


class HardwareClass:
    """Of all workers of a fleet with the same GPU product, number of GPUs and model."""

    __slots__ = ("calibration", "index", "profile", "slots", "steps")

    def __init__(self, index: int, base: HardwareProfile) -> None:
        self.index = index
        """In ``WorkerFleet.classes``."""
        self.calibration = Calibration(base)
        self.profile = base
        self.slots: set[int] = set()
        """Of the workers of this class."""
        self.steps: list[tuple[float, float]] = []
        """``decode_figures`` of the batches 0, 1, … as far as they were asked for."""

    def corrected(self) -> None:
        """Take over the profile as it is corrected now."""
        self.profile = self.calibration.profile
        self.steps.clear()

    def decode_figures(self, batch: int) -> tuple[float, float]:
        """As of the function above; remembered, since every charge asks for it."""
        steps = self.steps
        if batch < len(steps):
            return steps[batch]
        if batch >= _BATCHES_KEPT:
            return decode_figures(self.profile, batch)
        steps.extend(decode_figures(self.profile, each) for each in range(len(steps), batch + 1))
        return steps[batch]

    @property
    def recompute_ms_per_token(self) -> float:
        """Prefill of a token that was displaced."""
        return self.profile.prefill_ms(_PROMPT_TOKENS) / _PROMPT_TOKENS


class HardwareClasses:
    """All of one fleet: as many as there is different hardware, whatever the number of workers."""

    def __init__(self, book: ProfileBook) -> None:
        self.profiles: tuple[HardwareProfile, ...] = ()
        """By index, as corrected by what was observed. Another tuple after each change, as of ``WorkerFleet.facts``."""
        self._book = book
        self._of: dict[tuple[str | None, int, str], HardwareClass] = {}

    def of(self, place: WorkerPlace) -> HardwareClass:
        """The class of a worker there."""
        key = (place.product, place.gpus, place.model_id)
        hardware = self._of.get(key)
        if hardware is None:
            profile = self._book.find(place.product, place.model_id, place.gpus)
            hardware = self._of[key] = HardwareClass(len(self.profiles), profile)
            self.profiles += (profile,)
        return hardware

    def correct(self, hardware: HardwareClass, figures: FloatArray) -> None:
        """Take over a corrected profile and price the columns of its workers again: 0.5 ms for 7,000 of them."""
        before_ms = hardware.recompute_ms_per_token
        hardware.corrected()
        index = hardware.index
        self.profiles = (*self.profiles[:index], hardware.profile, *self.profiles[index + 1 :])
        slots = np.fromiter(hardware.slots, np.int64)
        figures[Figure.PRESSURE_MS_PER_TOKEN, slots] *= hardware.recompute_ms_per_token / before_ms
        batches, of_slot = np.unique(figures[Figure.BATCH, slots], return_inverse=True)
        priced = np.array([hardware.decode_figures(int(batch)) for batch in batches]).reshape(-1, 2)
        figures[Figure.HALF_STEP_MS, slots], figures[Figure.DECODE_MS_PER_TOKEN, slots] = priced[of_slot].T
