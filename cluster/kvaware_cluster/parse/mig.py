"""Names of MIG profiles: one spelling for what resources, products and the DCGM exporter say."""

import re
from typing import Final

__all__ = ["mig_profile"]

_PROFILE: Final = re.compile(r"(?:[0-9]+c\.)?[0-9]+g\.[0-9]+gb(?:[.-][a-z]+)*")


def mig_profile(text: str) -> str:
    """``1g.10gb``, or with what else the slice has: ``1g.10gb.me``; empty when the text is no profile.

    Resource names and labels cannot hold the ``+`` of ``1g.10gb+me`` and have a point there (NVIDIA's device plugin
    replaces it); DCGM has the plus sign.
    """
    name = text.replace("+", ".")
    return name if _PROFILE.fullmatch(name) else ""
