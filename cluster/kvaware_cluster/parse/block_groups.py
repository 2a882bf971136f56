"""A KVCacheBlockGroup as the API server has it → where its copies are."""

from typing import Any

from kvaware_cluster.parse.reports import Report, silent
from kvaware_cluster.parse.wire import entries, mapping, object_key, string
from kvaware_crds.base import read
from kvaware_crds.errors import WireError
from kvaware_crds.v1alpha1.kv_cache_block_group import BlockGroupCopy, KVCacheBlockGroup
from kvaware_engine.observations import BlockGroupObservation, CopyObservation, CopyState, ObjectKey, Tier

__all__ = ["parse_block_group"]


def parse_block_group(raw: dict[str, Any], *, report: Report = silent) -> BlockGroupObservation:
    """Read one KVCacheBlockGroup.

    In an object that does not validate (an older or newer CRD is installed) copies that cannot be read are left out:
    the group is then recomputed, which is always possible. ``report`` gets a sentence.
    Raises: WireError when no model is named.
    """
    key = object_key(raw, "kvcacheblockgroup")
    try:
        group = read(KVCacheBlockGroup, raw)
    except WireError as error:
        report(f"read in part: {error}")
        return _in_part(raw, key)
    copies = () if group.status is None else group.status.copies
    return BlockGroupObservation(
        key=key,
        model=ObjectKey(key.namespace, group.spec.model_ref.name),
        pinned=group.spec.pinned,
        copies=tuple(_copy(copy) for copy in copies),
    )


def _copy(copy: BlockGroupCopy) -> CopyObservation:
    return CopyObservation(
        worker=copy.worker, tier=Tier(copy.tier.value), size_bytes=copy.bytes, state=CopyState(copy.state.value)
    )


def _in_part(raw: dict[str, Any], key: ObjectKey) -> BlockGroupObservation:
    where = "kvcacheblockgroup"
    spec = mapping(raw, "spec", where)
    model = string(mapping(spec, "modelRef", f"{where}.spec"), "name", f"{where}.spec.modelRef")
    if not model:
        raise WireError(
            f"{where} {key.namespace}/{key.name}: expected the name of an InferenceModel in modelRef, got none"
        )
    copies = []
    for copy in entries(mapping(raw, "status", where), "copies", f"{where}.status"):
        try:
            copies.append(_copy(read(BlockGroupCopy, copy)))
        except WireError:
            continue
    return BlockGroupObservation(
        key=key, model=ObjectKey(key.namespace, model), pinned=spec.get("pinned") is True, copies=tuple(copies)
    )
