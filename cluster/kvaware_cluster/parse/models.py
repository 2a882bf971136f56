"""An InferenceModel as the API server has it → what its pods need and how its requests are placed."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from kvaware_cluster.parse.bounds import MAX_HBM_PER_GPU_BYTES
from kvaware_cluster.parse.reports import Report, silent
from kvaware_cluster.parse.selectors import selector_of
from kvaware_cluster.parse.wire import entries, mapping, metadata_of, object_key, string, uid_of
from kvaware_crds.base import ApiModel, read
from kvaware_crds.errors import WireError
from kvaware_crds.v1alpha1.inference_model import (
    Footprint,
    InferenceModel,
    InferenceModelSpec,
    KVCache,
    ModelServer,
    Policy,
    PolicyName,
    Role,
    Weights,
    WorkerPorts,
    Workers,
)
from kvaware_engine.observations import ModelObservation, ModelWorkers, RoleFootprint

__all__ = ["parse_model"]

_USED: Final = frozenset({"modelId", "revision", "roles", "weights", "kvCache", "workers", "servedNames", "policy"})
_USUAL_PORT: Final = {ModelServer.VLLM: 8000, ModelServer.SGLANG: 30_000}
_USUAL_BLOCK: Final = 16
"""Tokens per block of vLLM, and the default of ``kvCache.blockSizeTokens``."""
_USED_OF_WORKERS: Final = frozenset({"selector", "server", "ports", "capabilities"})
_USED_OF_ROLE: Final = frozenset({"name", "footprint"})

_MOST: Final = {"servedNames": 64, "capabilities": 16}
"""Items that the types take."""
_LEAST_SPEC: Final = {"modelId": "m", "roles": [{"name": "both", "footprint": {"gpusPerPod": 1}}]}
"""What a spec cannot be without."""

M = TypeVar("M", bound=ApiModel)


def parse_model(raw: dict[str, Any], *, report: Report = silent) -> ModelObservation:
    """Read one InferenceModel.

    An object that does not validate (an older or newer CRD is installed) is read as far as it can be: fields that
    nobody uses are passed over, weights and KV cache sizes that cannot be read are unknown, workers that cannot be read
    are those of the label on the usual ports, names, capabilities and a policy that this version does not know are left
    out, a role that cannot be read too (its pods are then refused, with a reason). ``report`` gets a sentence.
    Raises: WireError when there is no model id or no role left.
    """
    metadata = metadata_of(raw, "inferencemodel")
    uid = uid_of(metadata, "inferencemodel")
    try:
        spec = read(InferenceModel, raw).spec
    except WireError as error:
        report(f"read in part: {error}")
        spec = _in_part(raw)
    cache = spec.kv_cache
    return ModelObservation(
        key=object_key(raw, "inferencemodel"),
        uid=uid,
        model_id=spec.model_id,
        revision=spec.revision or "",
        roles=tuple(_footprint(role) for role in spec.roles),
        weights_bytes=None if spec.weights is None else spec.weights.size,
        kv_bytes_per_token=None if cache is None else cache.token_bytes(),
        workers=ModelWorkers() if spec.workers is None else _workers(spec.workers),
        created_at=created_at if type(created_at := metadata.get("creationTimestamp")) is str else "",
        served_names=spec.served_names or (spec.model_id,),
        policy=(PolicyName.COST if spec.policy is None else spec.policy.name).value,
        policy_fields=() if spec.policy is None else _policy_fields(spec.policy),
        block_size_tokens=_USUAL_BLOCK if cache is None else cache.block_size_tokens,
        max_context_tokens=None if cache is None else cache.max_context_tokens,
    )


def _policy_fields(policy: Policy) -> tuple[tuple[str, str], ...]:
    chosen = policy.model_dump(exclude={"name"}, exclude_none=True)
    return tuple((name, str(value)) for name, value in chosen.items())


def _workers(workers: Workers) -> ModelWorkers:
    ports = workers.ports
    http = (None if ports is None else ports.http) or _USUAL_PORT[workers.server]
    return ModelWorkers(
        selector=None if workers.selector is None else selector_of(workers.selector),
        http_port=http,
        metrics_port=(None if ports is None else ports.metrics) or http,
        kv_events_port=None if ports is None else ports.kv_events,
        kv_events_replay_port=None if ports is None else ports.kv_events_replay,
        capabilities=frozenset(capability.value for capability in workers.capabilities),
    )


def _footprint(role: Role) -> RoleFootprint:
    hbm = role.footprint.hbm_per_gpu
    return RoleFootprint(
        name=role.name,
        gpus_per_pod=role.footprint.gpus_per_pod,
        hbm_per_gpu_bytes=None if hbm is None else min(hbm, MAX_HBM_PER_GPU_BYTES),  # which is refused just the same
        pods_per_replica=role.footprint.pods_per_replica,
    )


def _in_part(raw: dict[str, Any]) -> InferenceModelSpec:
    where = "inferencemodel.spec"
    spec = {key: value for key, value in mapping(raw, "spec", "inferencemodel").items() if key in _USED}
    roles = []
    for role in entries(spec, "roles", where):
        footprint = _known(Footprint, mapping(role, "footprint", f"{where}.roles"))
        usable = _or_none(Role, {"name": string(role, "name", f"{where}.roles"), "footprint": footprint})
        if usable is not None:
            roles.append({key: value for key, value in role.items() if key in _USED_OF_ROLE} | {"footprint": footprint})
    spec["roles"] = roles
    if type(spec.get("workers")) is dict:
        workers = {key: value for key, value in spec["workers"].items() if key in _USED_OF_WORKERS}
        if type(workers.get("ports")) is dict:
            workers["ports"] = _known(WorkerPorts, workers["ports"])
        workers["capabilities"] = _each(Workers, "capabilities", workers.get("capabilities"))
        spec["workers"] = workers
    spec["servedNames"] = _each(InferenceModelSpec, "servedNames", spec.get("servedNames"), beside=_LEAST_SPEC)
    for key, part in (("weights", Weights), ("kvCache", KVCache), ("workers", Workers), ("policy", Policy)):
        if key in spec and (type(spec[key]) is not dict or _or_none(part, _known(part, spec[key])) is None):
            del spec[key]
        elif key in spec:
            spec[key] = _known(part, spec[key])
    return read(InferenceModelSpec, spec)


def _known(part: type[ApiModel], raw: dict[str, Any]) -> dict[str, Any]:
    names = {field.alias or name for name, field in part.model_fields.items()}
    return {key: value for key, value in raw.items() if key in names}


def _each(part: type[ApiModel], key: str, raw: Any, *, beside: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
    """Those items of a list that can be read, each once. ``beside``: what the part cannot be without."""
    items = raw if type(raw) is list else []
    kept = [item for item in items if type(item) is str and _or_none(part, {**beside, key: [item]}) is not None]
    return list(dict.fromkeys(kept))[: _MOST[key]]


def _or_none(part: type[M], raw: dict[str, Any]) -> M | None:
    try:
        return read(part, raw)
    except WireError:
        return None
