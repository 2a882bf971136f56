"""Where the checkout is."""

from pathlib import Path
from typing import Final

__all__ = ["REPOSITORY"]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
