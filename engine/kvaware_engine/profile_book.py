"""Which hardware profile fits a role: by the GPU's label, the model's name and the number of GPUs."""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import log
from typing import Final

from kvaware_engine.profiles import FALLBACK_PROFILE, GpuProduct, HardwareProfile, ProfileOrigin

__all__ = ["ProfileBook", "model_parameters", "product_words", "scaled_profile"]

_WORD: Final = re.compile(r"[a-z0-9.]+")
_MIG: Final = re.compile(r"-mig-(\d)g", re.IGNORECASE)
_MIG_SLICES: Final = 7
"""Compute slices of a whole GPU."""
_PARAMETERS: Final = re.compile(r"(?<![a-z0-9.])(?:(\d+)x)?(\d+(?:\.\d+)?)b(?![a-z0-9])")
_ACTIVE: Final = re.compile(r"(?<![a-z0-9.])a(\d+(?:\.\d+)?)b(?![a-z0-9])")
_EXPERTS_AT_WORK: Final = 2
"""Of ``8x7B`` and its like each token uses two experts."""
_REMEMBERED: Final = 4096
"""Answers kept; a cluster of 1,000 models with three roles each asks for fewer."""


def product_words(label: str) -> frozenset[str]:
    """``NVIDIA-H100-80GB-HBM3`` → nvidia, h100, 80gb, hbm3; what follows ``-MIG-`` describes the slice, not the GPU."""
    return frozenset(_WORD.findall(re.split("-mig-", label, maxsplit=1, flags=re.IGNORECASE)[0].lower()))


def model_parameters(model_id: str) -> float | None:
    """Parameters that one token of the model uses, as its name tells: ``…-70B-…``, ``8x7B``, ``30B-A3B``.

    Returns: None where the name does not tell.
    """
    name = model_id.lower()
    if active := _ACTIVE.search(name):
        return float(active[1]) * 1e9 or None
    if found := _PARAMETERS.search(name):
        experts = int(found[1] or 1)
        return float(found[2]) * min(experts, _EXPERTS_AT_WORK) * 1e9 or None
    return None


def scaled_profile(
    profile: HardwareProfile, *, product: GpuProduct, parameters: float, gpus: float, origin: ProfileOrigin
) -> HardwareProfile:
    """The profile of another model or GPU: prefill follows compute, decode memory bandwidth, both the weights per GPU.

    Args:
        profile: What was measured.
        product: Whose nominal speeds hold.
        parameters: Of the other model, above 0.
        gpus: Above 0; a part of one for a MIG slice.
        origin: How far the result can be believed.
    """
    weight = (parameters / profile.parameters) * (profile.gpus / gpus)
    prefill = weight * profile.product.tflops / product.tflops
    decode = weight * profile.product.hbm_bytes_per_s / product.hbm_bytes_per_s
    return replace(
        profile,
        product=product,
        parameters=parameters,
        gpus=max(1, round(gpus)),
        prefill_base_ms=profile.prefill_base_ms * prefill,
        prefill_ms_per_token=profile.prefill_ms_per_token * prefill,
        prefill_ms_per_token_squared=profile.prefill_ms_per_token_squared * prefill,
        decode_steps=tuple((batch, step_ms * decode) for batch, step_ms in profile.decode_steps),
        origin=origin,
    )


class ProfileBook:
    """Profiles by name, and what is derived from them."""

    def __init__(self, profiles: Mapping[str, HardwareProfile]) -> None:
        self._profiles = tuple(profiles.values()) or (FALLBACK_PROFILE,)
        self._answers: dict[tuple[str | None, str, int], HardwareProfile] = {}

    def find(self, product: str | None, model_id: str, gpus: int) -> HardwareProfile:
        """The nearest profile, scaled to the model and its GPUs; remembered.

        Args:
            product: The label of the GPU's product; None: unknown.
            model_id: The model's name.
            gpus: GPUs of one replica; what is below 1 counts as 1.
        Returns: A profile marked as guess where the product or the model's size is not known. An unknown product is
            taken for the slowest that was measured; an unknown size for the size that so many GPUs of the nearest
            measurement served.
        """
        key = (product, model_id, gpus)
        if (answer := self._answers.get(key)) is None:
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            answer = self._answers[key] = self._derived(product, model_id, max(1, gpus))
        return answer

    def _derived(self, product: str | None, model_id: str, gpus: int) -> HardwareProfile:
        known = self._of_product(product)
        parameters = model_parameters(model_id)
        measured = [each for each in self._profiles if each.origin is ProfileOrigin.MEASURED] or self._profiles
        slowest = min(measured, key=lambda each: each.product.tflops).product
        candidates = known or [each for each in self._profiles if each.product == slowest]

        def distance(each: HardwareProfile) -> tuple[bool, float, float]:
            # A measurement before what was derived from one; then the same number of GPUs, since what the GPUs lose
            # by talking to each other does not scale; then the nearest size.
            size = abs(log((parameters or each.parameters) / each.parameters))
            return (each.origin is not ProfileOrigin.MEASURED, abs(log(gpus / each.gpus)), size)

        nearest = min(candidates, key=distance)
        share = _mig_share(product) if known else 1.0
        size = parameters or nearest.parameters * gpus / nearest.gpus
        if not known or parameters is None or nearest.origin is ProfileOrigin.GUESS:
            origin = ProfileOrigin.GUESS
        elif (parameters, gpus, share) == (nearest.parameters, nearest.gpus, 1.0):
            return nearest
        else:
            origin = ProfileOrigin.SCALED
        scaled = scaled_profile(nearest, product=nearest.product, parameters=size, gpus=gpus * share, origin=origin)
        return replace(scaled, gpus=gpus)

    def _of_product(self, label: str | None) -> list[HardwareProfile]:
        """Profiles of the product whose words all stand in the label, the most of them first."""
        if not label:
            return []
        words = product_words(label)
        fits = [each for each in self._profiles if words.issuperset(each.product.words)]
        most = max((len(each.product.words) for each in fits), default=0)
        return [each for each in fits if len(each.product.words) == most]


def _mig_share(label: str | None) -> float:
    """Share of the GPU that a MIG slice computes with."""
    found = _MIG.search(label or "")
    return int(found[1]) / _MIG_SLICES if found and found[1] != "0" else 1.0
