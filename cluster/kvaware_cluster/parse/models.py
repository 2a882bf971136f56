"""An InferenceModel as the API server has it → what pods of it need."""

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
    Role,
    Weights,
    WorkerPorts,
    Workers,
)
from kvaware_engine.observations import ModelObservation, ModelWorkers, RoleFootprint

__all__ = ["parse_model"]

_USED: Final = frozenset({"modelId", "revision", "roles", "weights", "kvCache", "workers"})
_USUAL_PORT: Final = {ModelServer.VLLM: 8000, ModelServer.SGLANG: 30_000}
_USED_OF_WORKERS: Final = frozenset({"selector", "server", "ports"})
_USED_OF_ROLE: Final = frozenset({"name", "footprint"})

M = TypeVar("M", bound=ApiModel)


def parse_model(raw: dict[str, Any], *, report: Report = silent) -> ModelObservation:
    """Read one InferenceModel.

    An object that does not validate (an older or newer CRD is installed) is read as far as pods need it: fields that no
    pod needs are passed over, weights and KV cache sizes that cannot be read are unknown, workers that cannot be read
    are those of the label on the usual ports, a role that cannot be read is left out (its pods are then refused, with a
    reason). ``report`` gets a sentence.
    Raises: WireError when there is no model id or no role left.
    """
    metadata = metadata_of(raw, "inferencemodel")
    uid = uid_of(metadata, "inferencemodel")
    try:
        spec = read(InferenceModel, raw).spec
    except WireError as error:
        report(f"read in part: {error}")
        spec = _in_part(raw)
    return ModelObservation(
        key=object_key(raw, "inferencemodel"),
        uid=uid,
        model_id=spec.model_id,
        revision=spec.revision or "",
        roles=tuple(_footprint(role) for role in spec.roles),
        weights_bytes=None if spec.weights is None else spec.weights.size,
        kv_bytes_per_token=None if spec.kv_cache is None else spec.kv_cache.token_bytes(),
        workers=ModelWorkers() if spec.workers is None else _workers(spec.workers),
    )


def _workers(workers: Workers) -> ModelWorkers:
    ports = workers.ports
    http = (None if ports is None else ports.http) or _USUAL_PORT[workers.server]
    return ModelWorkers(
        selector=None if workers.selector is None else selector_of(workers.selector),
        http_port=http,
        metrics_port=(None if ports is None else ports.metrics) or http,
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
        spec["workers"] = workers
    for key, part in (("weights", Weights), ("kvCache", KVCache), ("workers", Workers)):
        if key in spec and (type(spec[key]) is not dict or _or_none(part, _known(part, spec[key])) is None):
            del spec[key]
        elif key in spec:
            spec[key] = _known(part, spec[key])
    return read(InferenceModelSpec, spec)


def _known(part: type[ApiModel], raw: dict[str, Any]) -> dict[str, Any]:
    names = {field.alias or name for name, field in part.model_fields.items()}
    return {key: value for key, value in raw.items() if key in names}


def _or_none(part: type[M], raw: dict[str, Any]) -> M | None:
    try:
        return read(part, raw)
    except WireError:
        return None
