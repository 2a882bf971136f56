"""Events of the CustomResourceDefinitions of kvaware's kinds: another one may keep other status fields."""

from typing import Any, Final

import kopf

from kvaware_cluster import Kind
from kvaware_crds import KINDS
from kvaware_operator.handlers.memo import Memo

__all__ = ["register_crds"]

CRDS: Final = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
OURS: Final = {kind.crd_name: Kind(name.lower()) for name, kind in KINDS.items()}


def register_crds(registry: kopf.OperatorRegistry) -> None:
    """Add the handler."""

    @kopf.on.event(*CRDS, when=lambda name, **_: name in OURS, registry=registry)
    async def on_crd(name: str, meta: Any, memo: Memo, **_: Any) -> None:
        memo.crd_seen(OURS[name], f"{meta.get('uid')}/{meta.get('generation')}")
