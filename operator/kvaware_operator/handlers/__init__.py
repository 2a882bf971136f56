"""What kopf calls: each handler only says which object is to be looked at."""

from kvaware_operator.handlers.crds import register_crds
from kvaware_operator.handlers.kinds import register_kinds
from kvaware_operator.handlers.memo import Memo

__all__ = ["Memo", "register_crds", "register_kinds"]
