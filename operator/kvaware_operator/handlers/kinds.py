"""Events of kvaware's three kinds. What happened does not matter: the whole object is looked at."""

from typing import Any, Final

import kopf

from kvaware_crds import KINDS, ResourceKind
from kvaware_engine.observations import ObjectKey
from kvaware_operator.handlers.memo import Memo

__all__ = ["register_kinds"]

INFERENCE_MODELS: Final[ResourceKind] = KINDS["InferenceModel"]
BLOCK_GROUPS: Final[ResourceKind] = KINDS["KVCacheBlockGroup"]
TENANT_QUOTAS: Final[ResourceKind] = KINDS["TenantQuota"]


def register_kinds(registry: kopf.OperatorRegistry) -> None:
    """Add the handlers."""

    @kopf.on.event(*_named(INFERENCE_MODELS), registry=registry)
    async def on_inference_model(namespace: str | None, name: str, memo: Memo, **_: Any) -> None:
        memo.models.request(ObjectKey(namespace or "", name))

    @kopf.on.event(*_named(BLOCK_GROUPS), registry=registry)
    async def on_block_group(namespace: str | None, name: str, memo: Memo, **_: Any) -> None:
        memo.groups.request(ObjectKey(namespace or "", name))

    @kopf.on.event(*_named(TENANT_QUOTAS), registry=registry)
    async def on_tenant_quota(name: str, memo: Memo, **_: Any) -> None:
        memo.quotas.request(ObjectKey("", name))


def _named(kind: ResourceKind) -> tuple[str, str, str]:
    return kind.group, kind.version, kind.plural
