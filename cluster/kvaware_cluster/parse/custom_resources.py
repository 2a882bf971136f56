"""An object of a kind of ours as the API server has it → its whole spec and its status, for the operator."""

from collections.abc import Mapping
from typing import Any, Final

from kvaware_cluster.parse.wire import metadata_of, object_key, string, uid_of
from kvaware_cluster.source import Kind
from kvaware_cluster.workloads import CustomResource
from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota
from kvaware_crds.base import read
from kvaware_crds.errors import WireError

__all__ = ["parse_custom_resource"]

MODELS: Final[Mapping[Kind, type[InferenceModel | KVCacheBlockGroup | TenantQuota]]] = {
    Kind.INFERENCE_MODEL: InferenceModel,
    Kind.KV_CACHE_BLOCK_GROUP: KVCacheBlockGroup,
    Kind.TENANT_QUOTA: TenantQuota,
}


def parse_custom_resource(raw: dict[str, Any], kind: Kind) -> CustomResource:
    """Read one object of ours.

    A spec that does not validate (an older or newer CRD is installed) is no error: ``resource`` is None and ``problem``
    says why. The status is kept as it came and does not decide about that: another version may have written it.
    Raises: WireError when it has no name or UID.
    """
    metadata = metadata_of(raw, kind)
    status, generation = raw.get("status"), metadata.get("generation")
    resource, problem = None, None
    # the version moves with every write, the operator's own status included: kept, each would be a change
    settled = {key: value for key, value in metadata.items() if key != "resourceVersion"}
    try:
        resource = read(MODELS[kind], {key: raw[key] for key in raw if key != "status"} | {"metadata": settled})
    except WireError as error:
        problem = str(error)
    return CustomResource(
        kind=kind,
        key=object_key(raw, kind),
        uid=uid_of(metadata, kind),
        generation=generation if type(generation) is int else 0,
        created_at=string(metadata, "creationTimestamp", f"{kind}.metadata"),
        terminating=bool(metadata.get("deletionTimestamp")),
        resource=resource,
        problem=problem,
        status=status if type(status) is dict else {},
    )
